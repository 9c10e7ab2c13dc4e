-- insert: test items and insert those that have not been seen, in one atomic step.
--
-- The keys of a filter with the name news and the prefix urifilter; the keys of a shard have one {hash tag}
-- (of another shard than 0 it may end in a salt, {news:1-53}; urifilter_redis/protocol/keys.py says which):
--   urifilter:filters             set: the names of the filters (written outside the scripts)
--   urifilter:{news:0}:meta       hash: uid, configuration, epoch, phase, slices (the live slices, oldest first, as
--                                 "name:units:bytes …"), inserted (number of items in today), opened (time of today,
--                                 ms), ahead (see reopen), closed (the closed slices of the window, as
--                                 "epoch:opened:closed:inserted …"), oldest (epoch);
--                                 growing: limit (items that today is for); rotating: token, pieces, late;
--                                 with an archive: checkpoint (number), checkpointed and changed (ms), worker, leased,
--                                 timeline (token of the last restore);
--                                 restoring: restorer, restored (ms), before (the phase), arranged,
--                                 worked (1: Redis was written to since the checkpoint)
--   urifilter:{news:0}:replies    hash: client/slot -> the record of the slot's last writing call
--   urifilter:{news:0}:forgotten  sorted set: digests that count as new once more, scored by epoch and time
--   urifilter:{news:0}:today      bitmap: the newest slice; only this is written to (ring with write=all: all slices)
--   urifilter:{news:0}:history    bitmap: rolling: all slices older than today that have not expired, merged
--   urifilter:{news:0}:history_1  bitmap: the newest closed slice; history_2 … are older (rolling: history_1 exists
--                                 only while a rotation runs)
--   urifilter:{news:0}:today_next bitmap: the next today, before a rotation
--   urifilter:{news:0}:slice:7    hash: rolling: the closed slice of epoch 7, compressed, and its manifest
--   urifilter:{news:0}:merging_1  strings: merging_1 and merging_2 exist only while merge or refill runs
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4…] slices: the live slices, from oldest to newest
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (deadline: server time in ms), or - for none
-- ARGV[3] max_age: ring: test only this many of the newest slices, or 0 for all; every other retention: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard; for a quick call, with n slices at most 2000/n
--
-- Reply: an array with the age of each item: 0 = new, and now inserted; n = seen, in the n-th newest slice (rolling:
-- 2 = in any older slice; ring with write=all: 1 = seen).
-- Errors: NOFILTER, MISMATCH, LOST, STALE, FULL, RESTORING, OLDCALL, LATECALL, BADARG

-- @include "_filter.lua"
-- @include "_items.lua"
-- @include "_call.lua"
-- @include "_begin.lua"
-- @include "_$layout.lua"
-- @include "_has_$layout.lua"
-- @include "_age.lua"

local before_writing

-- @include "_insert_$layout.lua"
-- @include "_room.lua"

local FIRST_SLICE = 4

local job, reply = begin(FIRST_SLICE, open_call)
if not job then return reply end
local packed, today, tested = job.packed, job.today, job.tested
local written = job.meta.write == 'all' and job.slices or { today }
local one_slice, last_seen = #job.slices == 1, job.meta.expire_after == 'last-seen'
local any_forgotten = redis.call('EXISTS', KEYS[3]) == 1
local unpack_digest, ages = struct.unpack, {}

-- This repeats a call that changed nothing, so all its items were seen. Items that have expired since count as seen.
if job.call.changed_nothing then
  for i = 1, job.count do
    local age = age_in(tested, unpack_digest('<I4I4I4I4', packed, i * 16 - 15))
    ages[i] = age > 0 and age or tested[#tested].age
  end
  return ages
end

if not has_room(job, any_forgotten) then
  return redis.error_reply('FULL today is for ' .. job.meta.limit .. ' items: the next slice must be made')
end

-- A user may lack the right to a command. A script that stopped after its first bit would have inserted items without
-- answering "new". So all commands that the call may still need are tried before the first bit.
local tried = false
before_writing = function()
  if tried then return end
  tried = true
  try_writing(today)
  if any_forgotten then redis.call('ZREM', KEYS[3], '') end
  remove_old_records(job.call)
  redis.call('HSET', KEYS[1], 'inserted', job.meta.inserted + 1)
end

local inserted = 0
for i = 1, job.count do
  local d0, d1, d2, d3 = unpack_digest('<I4I4I4I4', packed, i * 16 - 15)
  local again = any_forgotten and redis.call('ZSCORE', KEYS[3], string.sub(packed, i * 16 - 15, i * 16))
  local wrote, age = false
  if one_slice then -- test and insert in one step
    wrote = insert(today, d0, d1, d2, d3)
    age = (wrote or again) and 0 or 1
  else
    age = again and 0 or age_in(tested, d0, d1, d2, d3)
    if age == 0 or last_seen then
      for n = 1, #written do
        wrote = insert(written[n], d0, d1, d2, d3)
      end
    end
  end
  if again then
    before_writing()
    redis.call('ZREM', KEYS[3], string.sub(packed, i * 16 - 15, i * 16))
  end
  if age == 0 or wrote then
    inserted = inserted + 1
  end
  ages[i] = age
end

if inserted > 0 then
  if inserted > 1 then redis.call('HSET', KEYS[1], 'inserted', job.meta.inserted + inserted) end
  record_call(job.call, ages)
else
  record_call(job.call)
end
return ages
