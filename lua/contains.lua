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
-- @include "_$layout.lua"
-- @include "_has_$layout.lua"

local FIRST_SLICE, FIRST_ITEM = 3, 5
local uid, call_id, max_age, encoding = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local packed, refusal = read_digests(encoding, FIRST_ITEM)
if not packed then return refusal end
if call_id ~= '-' then return redis.error_reply('BADARG the call id of contains is -') end
if max_age ~= '0' then return redis.error_reply('BADARG max_age is 0 for this retention') end

local meta, slices
meta, refusal = read_meta(uid, FIRST_SLICE)
if not meta then return refusal end
slices, refusal = live_slices(meta, FIRST_SLICE)
if not slices then return refusal end
refusal = check_shard(meta, packed)
if refusal then return refusal end

local today = slices[#slices]
local any_forgotten = redis.call('EXISTS', KEYS[2]) == 1
local ages = {}
for i = 1, #packed / 16 do
  ages[i] = has(today, struct.unpack('<I4I4I4I4', packed, i * 16 - 15)) and 1 or 0
  if any_forgotten and ages[i] == 1 and redis.call('ZSCORE', KEYS[2], string.sub(packed, i * 16 - 15, i * 16)) then
    ages[i] = 0
  end
end
return ages
