-- remove: take items out again; layout counting only.
-- Remove only items that were certainly inserted. The removal of an item that was not inserted does harm with the
-- probability of the error rate: other items then count as new.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- @if no claims
-- KEYS[4…] slices: of today the segments of the items
-- @end if
-- @if claims
-- KEYS[4] leases
-- KEYS[5] in_flight
-- KEYS[6] holders
-- KEYS[7] dead_letters
-- KEYS[8] dead_letters_at
-- KEYS[9…] slices: of today the segments of the items
-- @end if
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; with + behind it the caller sends WAIT,
--   with = and 16 hex digits it is a part of that request), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array of one integer an item: 1 = it was seen, or in flight, and is removed; 0 = it was not.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, RESTORING, OLDCALL, LATECALL, BADARG

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
-- @include "_counting.lua" common
-- @include "_time.lua" now changed
-- @include "_try.lua" when_full
-- @if claims
-- @include "_leases.lua" entries take_out
-- @include "_dead_letters.lua" read delete
-- @end if

local any_forgotten = call('EXISTS', KEYS[3]) == 1
local was_there, removed, noted = {}, 0, false
write_when_full(KEYS[1])

local function note() -- before the first change of a call, because a user may lack the right to a command
  if noted then return end
-- @if claims
  if any_leases then try_taking() end
  if next(letters) then try_deleting() end
-- @end if
  note_change()
  noted = true
end

remove_old_records()

for i = 1, count do
  was_there[i] = 0
  local forgotten = any_forgotten and call('ZSCORE', KEYS[3], string.sub(packed, i * 16 - 15, i * 16))
  local entry
-- @if claims
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  entry = not changed_nothing and entries[digest]
  if entry then -- it is not inserted yet
    note()
    take_out(digest, entry)
    was_there[i] = 1
  end
  if not changed_nothing and letters[digest] then
    note()
    delete_letter(digest)
  end
-- @end if
  if not changed_nothing and not forgotten and not entry then
    local d0, d1, d2, d3 = struct.unpack('<I4I4I4I4', packed, i * 16 - 15)
    local today = rows and segment_of(FIRST_SLICE, d3) or KEYS[FIRST_SLICE]
    local offsets, counts = counters(today, units[FIRST_SLICE], false, d0, d1, d2, d3)
    if offsets then
      note()
      set_counters('BITFIELD', today, offsets, counts, -1)
      was_there[i] = 1
      removed = removed + 1
    end
  end
end

if removed > 0 then call('HSET', KEYS[1], 'inserted', inserted - removed) end
local answers = noted and was_there or nil

-- @include "_call.lua" record

return was_there
