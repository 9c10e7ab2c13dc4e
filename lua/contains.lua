-- contains: test items without inserting them. It writes nothing, so a replica can answer it.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
-- KEYS[3…] slices: the live slices, from oldest to newest
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: always -, because nothing is recorded
-- ARGV[3] max_age: ring: test only this many of the newest slices, or 0 for all; every other retention: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array with the age of each item: 0 = not seen; n = seen, in the n-th newest slice (rolling: 2 = in any
-- older slice; ring with write=all: 1 = seen).
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
