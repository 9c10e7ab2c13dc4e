-- insert: test items and insert those that have not been seen, in one atomic step.
--
-- The keys of a filter called news, prefix urifilter; one {hash tag} a shard:
--   urifilter:filters             set: the names of the filters (written outside the scripts)
--   urifilter:{news:0}:meta       hash: uid, configuration, epoch, phase, slices ("name:units:bytes …", the live ones,
--                                 oldest first), inserted (into today), opened (today, ms; ahead: see reopen), closed
--                                 ("epoch:opened:closed:inserted …", the others of the window), oldest (epoch);
--                                 growing: limit (items of today); rotating: token, pieces, late; with an archive:
--                                 checkpoint (number), checkpointed and changed (ms), worker, leased, timeline (token of
--                                 the last restore); restoring: restorer, restored (ms), before (the phase), arranged,
--                                 worked (1: Redis was written to since the checkpoint)
--   urifilter:{news:0}:replies    hash: client/slot -> the last answer of a writing call
--   urifilter:{news:0}:forgotten  sorted set: digests that count as new once more, scored by epoch and time
--   urifilter:{news:0}:today      newest slice, a bitmap: the only one written to (ring with write=all: all are)
--   urifilter:{news:0}:history    rolling: everything older than today that has not expired, merged
--   urifilter:{news:0}:history_1  closed slices, newest first: history_1, history_2 … (rolling: while a rotation runs)
--   urifilter:{news:0}:today_next the next today, before a rotation
--   urifilter:{news:0}:slice:7    hash: rolling: the closed slice of epoch 7, compressed, and its manifest
--   urifilter:{news:0}:merging_1  strings: merging_1 and merging_2, while the script merge runs
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4…] slices: the live ones, from oldest to newest
--
-- ARGV[1] uid: of the filter
-- ARGV[2] call id: client/slot/sequence/deadline (deadline: server time in ms), or - for none
-- ARGV[3] max_age: ring: look only at the so many newest slices; 0 for all, and for every other retention
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard; with n slices at most 2000/n, to be quick
--
-- Reply: an array of one integer an item, its age: 0 = new, now inserted; 1 = seen, in the newest slice; n = in the
-- n-th newest (rolling: 2 = in any older one; ring with write=all: always 1).
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

-- A repeat of a call that changed nothing: all was seen, and what has expired since counts as seen.
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

-- A user may lack the right to a command. All that a call may need once a bit is written is tried before: a script that
-- dies in between has inserted items whose finder is never told so.
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
