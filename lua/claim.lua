-- claim: claim the items that nobody has seen and nobody has in flight.
-- A claim is a "new" that is final only once it is committed. The holder lives for a lease from its last call in the
-- shard; what a dead holder has in flight is anybody's.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4] leases
-- KEYS[5] in_flight
-- KEYS[6] holders
-- KEYS[7] dead_letters
-- KEYS[8] dead_letters_at
-- KEYS[9…] slices: of the live slices, from oldest to newest, the segments of the items
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; with + behind it the caller sends WAIT,
--   with * it turns the shard at DUE, with = and 16 hex digits it is a part of that request), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5] holder: 16 hex digits that do not begin with 00
-- ARGV[6] lease: the ms for which the holder lives without another call; at most 3600000
-- ARGV[7…] items: at most 500 digests, all of this shard (for a quick call 250); then one text an item: what is
--   kept of it for another crawler (item and payload), at most 256 KiB
--
-- Reply: an array of one integer an item: 0 = claimed; n = seen, in the n-th newest slice (as insert answers); -1 = in
-- in flight, perhaps this holder's own. Then three integers for each item that is claimed, and has been released
-- as failed or had a holder that died: its position (from 1), failures, lapses. What is seen is inserted again where
-- items expire after they were last seen.
-- @if no redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, FULL, DUE, RESTORING, OLDCALL, LATECALL, BADARG
-- @end if
-- @if redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, FULL, DUE, RESTORING, MODULE, OLDCALL, LATECALL, BADARG
-- @end if

local call, unpack_digest = redis.call, struct.unpack
local KEYS, ARGV = KEYS, ARGV -- a local is faster than a global
local uid, base, CLAIMS, FIRST_SLICE, FINAL = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), 2, 9, false
local NAMES = { 'meta', 'replies', 'forgotten', 'leases', 'in_flight', 'holders', 'dead_letters', 'dead_letters_at' }
local LEASES, IN_FLIGHT, HOLDERS, DEAD_LETTERS, DEAD_LETTERS_AT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local FIRST_ITEM, LAST_ITEM, HOLDER, INSERTS = 7, math.floor(6 + (#ARGV - 6) / 2), 5, false
local SHORT = 12 -- bytes of an entry whose item and payload stand in a field of their own: holder, failures, lapses
local MOST_KEPT = 256 * 1024 -- bytes: what reclaim answers at most; clients send at most 128 KiB an item
local IN_ENTRY = 1024 -- most bytes of what is kept that stand in the entry; every look at an entry reads them
if ARGV[4] == 'bin' then LAST_ITEM = math.min(7, #ARGV) end

-- @include "_items.lua" read
-- @include "_holder.lua" read beat
-- @include "_try.lua" when_full

if not own or #ARGV ~= LAST_ITEM + count or max_age ~= 0 then
  return redis.error_reply('BADARG claim takes max_age 0, a holder, and a text for each item')
end
for i = LAST_ITEM + 1, #ARGV do
  if #ARGV[i] > MOST_KEPT then
    return redis.error_reply('BADARG at most ' .. MOST_KEPT .. ' bytes are kept of an item')
  end
end
local SCOPE = table.concat({ ARGV[3], ARGV[5], ARGV[6] }, ' ')

-- @include "_shard.lua" identity meta

local found_counts = {} -- position, failures and lapses in turn
local function note_counts(position, failures, lapses)
  local n = failures + lapses > 0 and #found_counts
  if n then found_counts[n + 1], found_counts[n + 2], found_counts[n + 3] = position, failures, lapses end
end

-- No record has the counts: the entries have them.
local function with_counts(answers)
  for _, each in ipairs(found_counts) do
    answers[#answers + 1] = each
  end
  return answers
end

-- Of a repeated claim those items are claimed that the holder still has in flight.
local function repeated(answers)
  if phase == 'restoring' then return redis.error_reply('RESTORING the filter is being restored from its archive') end
  for i, answer in ipairs(answers) do
    local entry = answer == 0 and call('HGET', LEASES, string.sub(packed, i * 16 - 15, i * 16))
    if entry and string.sub(entry, 1, 8) == own then
      note_counts(i, struct.unpack('<I2I2', entry, 9))
    elseif answer == 0 then
      answers[i] = -1
    end
  end
  write_when_full(KEYS[1])
  beat(time_ms())
  return with_counts(answers)
end

-- @include "_call.lua" id
-- @include "_slices.lua" live
-- @include "_items.lua" shard
-- @include "_due.lua" call
-- @include "_time.lua" written
-- @include "_$layout.lua" common has
-- @include "_leases.lua" entries
-- @include "_dead_letters.lua" read delete

local any_forgotten, ages, age_in, oldest_age = changed and call('EXISTS', KEYS[3]) == 1, {}

living[own] = true -- this call is a beat

-- @include "_age.lua" age
-- @include "_count.lua" room

local last_seen = string.find(policy, '/last-seen', 1, true) and not changed_nothing
local taken, added, again, old, long, fields, members = 0, 0, {}, {}, {}, {}, {}
for i = 1, count do
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  local entry, age = entries[digest], 0
  if entry then
    if is_in_flight(entry) or changed_nothing then age = -1 end
  elseif not any_forgotten or not call('ZSCORE', KEYS[3], digest) then
    age = age_in(unpack_digest('<I4I4I4I4', digest))
    if age > 0 and last_seen then again[#again + 1] = i end
  end
  -- The items of a call that claimed nothing were seen, or in flight. Those that have expired since count as seen.
  if changed_nothing and age == 0 then age = oldest_age end
  if age == 0 then
    local failures, lapses, kept = 0, 0, ARGV[LAST_ITEM + i]
    if entry then
      failures, lapses = struct.unpack('<I2I2', entry, 9)
      if string.byte(entry) ~= 0 and lapses < 65535 then lapses = lapses + 1 end -- a delay holder does not die
      old[#old + 1] = string.sub(entry, 1, 8) .. digest
      note_counts(i, failures, lapses)
    end
    local made = own .. struct.pack('<I2I2', failures, lapses)
    if #kept > IN_ENTRY then
      fields[#fields + 1], fields[#fields + 2] = digest .. '+', kept
    else
      made = made .. kept
      if entry and #entry == SHORT then long[#long + 1] = digest .. '+' end
    end
    fields[#fields + 1], fields[#fields + 2] = digest, made
    members[#members + 1], members[#members + 2] = 0, own .. digest
    entries[digest], taken = own, taken + 1
  end
  ages[i] = age
end

-- A user may lack the right to a command: so all are tried before the first write.
if changed_nothing then write_when_full(KEYS[1]) end
try_beating()
try_deleting()
if #again > 0 then
  local key = KEYS[#KEYS]

-- @include "_$layout.lua" try

end
clock = clock or time_ms()
local adds_holder = taken > 0 and not call('ZSCORE', HOLDERS, own)

remove_old_records()
-- @include "_holder.lua" tidy

if taken > 0 then
  call('HSET', KEYS[1], 'claims', string.format('%.0f', math.max(tonumber(longest or 0), lease)),
    'claimed', string.format('%.0f', (call('HGET', KEYS[1], 'claimed') or 0) + taken))
  if #old > 0 then call('ZREM', IN_FLIGHT, unpack(old)) end
  if #long > 0 then call('HDEL', LEASES, unpack(long)) end
  call('HSET', LEASES, unpack(fields))
  call('ZADD', IN_FLIGHT, unpack(members))
  for digest in pairs(next(letters) and entries or {}) do -- it was rejected, and has expired since
    if entries[digest] == own then delete_letter(digest) end
  end
end
local fresh, moved, first_written = 0, {}, string.find(policy, '/all/', 1, true) and FIRST_SLICE or LAST_SLICE
if #again > 0 then call('HSET', KEYS[1], 'written', time_written(written, now)) end
for _, i in ipairs(again) do
  local digest, wrote, missing = string.sub(packed, i * 16 - 15, i * 16), false, 0
  for n = first_written, LAST_SLICE do
    local d0, d1, d2, d3 = unpack_digest('<I4I4I4I4', digest)
    local key, size = rows and segment_of(n, d3) or KEYS[n], units[n]

-- @include "_$layout.lua" test

    if wrote then

-- @include "_$layout.lua" write

      missing = missing + 1
    end
  end
  if wrote then
    local number = first_written < LAST_SLICE and missing or ages[i] - 1
    added, moved[number] = added + 1, (moved[number] or 0) + 1
  end
end

-- @include "_count.lua" count

local answers = taken + added > 0 and ages or nil

-- @include "_call.lua" record

beat(time_ms(), taken > 0)
return with_counts(ages)
