-- contains: test items without inserting; writes nothing, so a replica can answer it.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
-- KEYS[3…] slices: the live ones, from oldest to newest
--
-- ARGV[1] uid: of the filter
-- ARGV[2] call id: always -, nothing is recorded
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array of one integer an item, its age: 0 = not seen; 1 = seen.
-- Errors: NOFILTER, MISMATCH, LOST, STALE, RESTORING, BADARG

-- @include "_filter.lua"
-- @include "_items.lua"
-- @include "_begin.lua"
-- @include "_$layout.lua"
-- @include "_has_$layout.lua"

local FIRST_SLICE = 3

local job, reply = begin(FIRST_SLICE)
if not job then return reply end
local packed, today = job.packed, job.slices[#job.slices]
local any_forgotten = redis.call('EXISTS', KEYS[2]) == 1
local ages = {}
for i = 1, #packed / 16 do
  ages[i] = has(today, struct.unpack('<I4I4I4I4', packed, i * 16 - 15)) and 1 or 0
  if any_forgotten and ages[i] == 1 and redis.call('ZSCORE', KEYS[2], string.sub(packed, i * 16 - 15, i * 16)) then
    ages[i] = 0
  end
end
return ages
