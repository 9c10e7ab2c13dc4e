-- insert: test items and insert those that have not been seen, in one atomic step.
--
-- The keys of a filter called news, prefix urifilter; one {hash tag} a shard:
--   urifilter:filters            set: the names of the filters (written outside the scripts)
--   urifilter:{news:0}:meta      hash: uid, configuration, epoch, phase, slices ("name:units:bytes …"), inserted
--   urifilter:{news:0}:replies   hash: client/slot -> the last answer of a writing call
--   urifilter:{news:0}:forgotten sorted set: digests that count as new once more, scored by epoch
--   urifilter:{news:0}:today     newest slice, a bitmap: the only one written to
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4…] slices: the live ones, from oldest to newest
--
-- ARGV[1] uid: of the filter
-- ARGV[2] call id: client/slot/sequence/deadline (deadline: server time in ms), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array of one integer an item, its age: 0 = new, now inserted; 1 = seen.
-- Errors: NOFILTER, MISMATCH, LOST, STALE, RESTORING, OLDCALL, LATECALL, BADARG

-- @include "_filter.lua"
-- @include "_items.lua"
-- @include "_call.lua"
-- @include "_begin.lua"
-- @include "_$layout.lua"
-- @include "_insert_$layout.lua"

local FIRST_SLICE = 4

local job, reply = begin(FIRST_SLICE, open_call)
if not job then return reply end
local packed, today = job.packed, job.slices[#job.slices]
local any_forgotten = redis.call('EXISTS', KEYS[3]) == 1
local ages, inserted = {}, 0
local unpack_digest, changed_nothing = struct.unpack, job.call.changed_nothing
for i = 1, #packed / 16 do
  ages[i] = 1
  if not changed_nothing then -- a repeat of a call that found everything seen finds so again
    local new = insert(today, unpack_digest('<I4I4I4I4', packed, i * 16 - 15))
    if any_forgotten and redis.call('ZREM', KEYS[3], string.sub(packed, i * 16 - 15, i * 16)) == 1 then
      new = true
    end
    if new then
      ages[i] = 0
      inserted = inserted + 1
    end
  end
end

if inserted > 0 then
  redis.call('HINCRBY', KEYS[1], 'inserted', inserted)
  record_call(job.call, ages)
elseif not changed_nothing then
  record_call(job.call)
end
return ages
