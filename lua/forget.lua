-- forget: make items new once more, in any layout.
-- Their digests go into a sorted set that the other scripts consult.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- @if no claims
-- KEYS[4…] slices: of the live slices, from oldest to newest, the segments of the items
-- @end if
-- @if claims
-- KEYS[4] leases
-- KEYS[5] in_flight
-- KEYS[6] holders
-- KEYS[7] dead_letters
-- KEYS[8] dead_letters_at
-- KEYS[9…] slices: of the live slices, from oldest to newest, the segments of the items
-- @end if
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; with + behind it the caller sends WAIT,
--   with = and 16 hex digits it is a part of that request), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array of one integer an item: 1 = it was seen, or in flight, and is new once more;
--   0 = it was not.
-- @if no redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, RESTORING, OLDCALL, LATECALL, BADARG
-- @end if
-- @if redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, RESTORING, MODULE, OLDCALL, LATECALL, BADARG
-- @end if

local call = redis.call
local uid, base, CLAIMS = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), $claims
local FIRST_ITEM, LAST_ITEM, SCOPE, INSERTS, repeated = 5, #ARGV, ARGV[3], false
-- @if no claims
local FIRST_SLICE, NAMES = 4, { 'meta', 'replies', 'forgotten' }
-- @end if
-- @if claims
local FIRST_SLICE = 9
local NAMES = { 'meta', 'replies', 'forgotten', 'leases', 'in_flight', 'holders', 'dead_letters', 'dead_letters_at' }
local LEASES, IN_FLIGHT, HOLDERS, DEAD_LETTERS, DEAD_LETTERS_AT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
-- @end if

-- @include "_items.lua" read
-- @include "_shard.lua" identity meta
-- @include "_age.lua" max_age
-- @include "_call.lua" id
-- @include "_slices.lua" live
-- @include "_items.lua" shard
-- @include "_$layout.lua" common has

local age_in, oldest_age

-- @include "_age.lua" age
-- @include "_time.lua" now changed forgotten
-- @if claims
-- @include "_leases.lua" entries take_out
-- @include "_dead_letters.lua" read delete
-- @end if

remove_old_records()

local was_there, noted = {}, false
local epoch = call('HGET', KEYS[1], 'epoch')

local function note() -- before the first change of a call, because a user may lack the right to a command
  if noted then return end
-- @if claims
  if any_leases then try_taking() end
  if next(letters) then try_deleting() end
-- @end if
  note_change()
  noted = true
end

for i = 1, count do
  was_there[i] = 0
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  if not changed_nothing and age_in(struct.unpack('<I4I4I4I4', digest)) > 0
    and not call('ZSCORE', KEYS[3], digest) then
    note()
    was_there[i] = call('ZADD', KEYS[3], forgotten_score(epoch), digest)
  end
-- @if claims
  local entry = not changed_nothing and entries[digest]
  if entry then
    note()
    take_out(digest, entry)
    was_there[i] = 1
  end
  if not changed_nothing and letters[digest] then
    note()
    delete_letter(digest)
  end
-- @end if
end

local answers = noted and was_there or nil

-- @include "_call.lua" record

return was_there
