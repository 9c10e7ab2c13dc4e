-- commit: make items in hand final: they are inserted, whoever has them.
-- An item in nobody's hands is inserted if it has not been seen, as insert does.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4] leases
-- KEYS[5] hands
-- KEYS[6] holders
-- KEYS[7…] slices: the live slices, from oldest to newest
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; with + behind it the caller sends WAIT,
--   with * it turns the shard at DUE), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5] holder: 16 hex digits that do not begin with 00, or - for none
-- ARGV[6] lease: the ms for which the holder lives without another call; at most 3600000
-- ARGV[7…] items: at most 500 digests, all of this shard (for a quick call 250)
--
-- Reply: an array of one integer an item: 0 = this call made it final; n = seen, in the n-th newest slice.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, FULL, DUE, RESTORING, OLDCALL, LATECALL, BADARG

local call, unpack_digest = redis.call, struct.unpack
local KEYS, ARGV = KEYS, ARGV -- a local is faster than a global
local uid, base, CLAIMS, FIRST_SLICE, FINAL = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), 2, 7, true
local NAMES = { 'meta', 'replies', 'forgotten', 'leases', 'hands', 'holders' }
local LEASES, HANDS, HOLDERS = KEYS[4], KEYS[5], KEYS[6]
local FIRST_ITEM, LAST_ITEM, HOLDER, INSERTS = 7, #ARGV, 5, true

-- @include "_items.lua" read
-- @include "_holder.lua" read beat
-- @include "_try.lua" when_full

if max_age ~= 0 then return redis.error_reply('BADARG max_age is 0 here') end
local SCOPE = table.concat({ ARGV[3], ARGV[5], ARGV[6] }, ' ')

-- @include "_shard.lua" identity meta

-- A repeat has the same answers. It is a beat too.
local function repeated(answers)
  write_when_full(KEYS[1])
  if own and phase ~= 'restoring' then beat(time_ms()) end
  return answers
end

-- @include "_call.lua" id
-- @include "_slices.lua" live
-- @include "_items.lua" shard
-- @include "_due.lua" call
-- @include "_time.lua" written
-- @include "_$layout.lua" common has
-- @include "_leases.lua" entries take_out

local any_forgotten, ages, age_in, oldest_age = changed and call('EXISTS', KEYS[3]) == 1, {}

-- @include "_age.lua" age

-- All items of a call that changed nothing were seen. Items that have expired since count as seen.
if changed_nothing then
  for i = 1, count do
    local age = age_in(unpack_digest('<I4I4I4I4', packed, i * 16 - 15))
    ages[i] = age > 0 and age or oldest_age
  end
  return repeated(ages)
end

-- @include "_count.lua" room

write_when_full(KEYS[1])
if own then try_beating() end

-- @include "_call.lua" old_records

local tried, added, fresh, moved = false, 0, 0, {}
local last_seen = string.find(policy, '/last-seen', 1, true)
local first_written = string.find(policy, '/all/', 1, true) and FIRST_SLICE or #KEYS
for i = 1, count do
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  local d0, d1, d2, d3 = unpack_digest('<I4I4I4I4', digest)
  local entry = entries[digest]
  local forgotten = any_forgotten and call('ZSCORE', KEYS[3], digest)
  local wrote, age, missing = false, 0, 0
  if not entry and not forgotten then age = age_in(d0, d1, d2, d3) end
  for n = first_written, (age == 0 or last_seen) and #KEYS or 0 do
    local key, size, d1, d2, d3 = KEYS[n], units[n], d1, d2, d3

-- @include "_$layout.lua" test

    -- An item in hand is not counted yet, unless it was forgotten: it was inserted before, and its counters stay.
    if '$layout' == 'counting' and entry and not forgotten then wrote = true end
    -- A user may lack the right to a command: so all are tried before the first bit.
    if (wrote or entry or forgotten) and not tried then
      tried = true
      call('ZREM', KEYS[3], '')
      try_taking()

-- @include "_$layout.lua" try

      if timed then
        call('HSET', KEYS[1], 'inserted', inserted + 1, 'written', time_written(written, now))
      else
        call('HSET', KEYS[1], 'inserted', inserted + 1)
      end
    end
    if wrote then

-- @include "_$layout.lua" write

      missing = missing + 1
    end
  end
  if forgotten then call('ZREM', KEYS[3], digest) end
  if entry then take_out(digest, entry) end
  if age == 0 or wrote then
    added = added + 1
    if age == 0 then
      fresh = fresh + 1
    else
      local number = first_written < #KEYS and missing or age - 1
      moved[number] = (moved[number] or 0) + 1
    end
  end
  ages[i] = age
end

if not tried and last_seen then call('HSET', KEYS[1], 'written', time_written(written, now)) end

-- @include "_count.lua" count

local answers = added > 0 and ages or nil

-- @include "_call.lua" record

if own then beat(time_ms()) end
return recorded or ages
