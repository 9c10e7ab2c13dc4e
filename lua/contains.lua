-- contains: test items without inserting; writes nothing, so a replica can answer it.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
-- KEYS[3…] slices: the live ones, from oldest to newest
--
-- ARGV[1] uid: of the filter
-- ARGV[2] call id: always -, nothing is recorded
-- ARGV[3] max_age: ring: look only at the so many newest slices; 0 for all, and for every other retention
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array of one integer an item, its age: 0 = not seen; 1 = seen, in the newest slice; n = in the n-th newest
-- (rolling: 2 = in any older one; ring with write=all: always 1).
-- Errors: NOFILTER, MISMATCH, LOST, STALE, RESTORING, BADARG

-- @include "_filter.lua"
-- @include "_items.lua"
-- @include "_begin.lua"
-- @include "_$layout.lua"
-- @include "_has_$layout.lua"
-- @include "_age.lua"

local FIRST_SLICE = 3

local job, reply = begin(FIRST_SLICE)
if not job then return reply end
local packed, tested = job.packed, job.tested
local any_forgotten = redis.call('EXISTS', KEYS[2]) == 1
local ages = {}
for i = 1, job.count do
  ages[i] = age_in(tested, struct.unpack('<I4I4I4I4', packed, i * 16 - 15))
  if any_forgotten and ages[i] > 0 and redis.call('ZSCORE', KEYS[2], string.sub(packed, i * 16 - 15, i * 16)) then
    ages[i] = 0
  end
end
return ages
