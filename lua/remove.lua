-- remove: take items out again; layout counting only. Remove only items that were certainly inserted. The removal of an
-- item that was not inserted does harm with the probability of the error rate: other items then count as new.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4…] slices: today
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (deadline: server time in ms), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array of one integer an item: 1 = it was seen and is removed, 0 = it was not seen.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, RESTORING, OLDCALL, LATECALL, BADARG

local call = redis.call
local uid, base, FIRST_SLICE = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), 4

-- @include "_items.lua"
-- @include "_identity.lua"
-- @include "_meta.lua"
-- @include "_max_age.lua"
-- @include "_call.lua"
-- @include "_slices.lua"
-- @include "_belongs.lua"
-- @include "_counting.lua"
-- @include "_now.lua"
-- @include "_changed.lua"
-- @include "_when_full.lua"

local today, any_forgotten = KEYS[FIRST_SLICE], call('EXISTS', KEYS[3]) == 1
local was_there, removed = {}, 0
write_when_full(KEYS[1])

-- @include "_old_records.lua"

for i = 1, count do
  was_there[i] = 0
  local forgotten = any_forgotten and call('ZSCORE', KEYS[3], string.sub(packed, i * 16 - 15, i * 16))
  if not changed_nothing and not forgotten then
    local offsets, counts = counters(today, units[FIRST_SLICE], false, struct.unpack('<I4I4I4I4', packed, i * 16 - 15))
    if offsets then
      if removed == 0 then note_change() end -- before the first counter: a user may lack the right to HSET
      set_counters(today, offsets, counts, -1)
      was_there[i] = 1
      removed = removed + 1
    end
  end
end

if removed > 0 then call('HSET', KEYS[1], 'inserted', inserted - removed) end
local answers = removed > 0 and was_there or nil

-- @include "_record.lua"

return was_there
