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
-- Errors: NOFILTER, MISMATCH, LOST, STALE, RESTORING, OLDCALL, LATECALL, BADARG

-- @include "_filter.lua"
-- @include "_items.lua"
-- @include "_call.lua"
-- @include "_begin.lua"
-- @include "_counting.lua"
-- @include "_now.lua"
-- @include "_changed.lua"
-- @include "_when_full.lua"

local FIRST_SLICE = 4

local job, reply = begin(FIRST_SLICE, open_call)
if not job then return reply end
local packed, any_forgotten = job.packed, redis.call('EXISTS', KEYS[3]) == 1
local was_there, removed = {}, 0
write_when_full(KEYS[1])

for i = 1, job.count do
  was_there[i] = 0
  local forgotten = any_forgotten and redis.call('ZSCORE', KEYS[3], string.sub(packed, i * 16 - 15, i * 16))
  if not job.call.changed_nothing and not forgotten then
    local offsets, values = counters(job.today, false, struct.unpack('<I4I4I4I4', packed, i * 16 - 15))
    if offsets then
      if removed == 0 then -- before the first counter, because a user may lack the right to these commands
        note_change()
        remove_old_records(job.call)
      end
      set_counters(job.today, offsets, values, -1)
      was_there[i] = 1
      removed = removed + 1
    end
  end
end

if removed > 0 then
  redis.call('HSET', KEYS[1], 'inserted', job.meta.inserted - removed)
  record_call(job.call, was_there)
elseif not job.call.changed_nothing then
  record_call(job.call)
end
return was_there
