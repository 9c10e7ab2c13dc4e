-- forget: make items new again, in any layout: an exact set of digests that the other scripts consult.
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
-- Reply: an array of one integer an item: 1 = it was seen and is new again, 0 = it was not seen.
-- Errors: NOFILTER, MISMATCH, LOST, STALE, RESTORING, OLDCALL, LATECALL, BADARG

-- @include "_filter.lua"
-- @include "_items.lua"
-- @include "_call.lua"
-- @include "_$layout.lua"
-- @include "_has_$layout.lua"

local FIRST_SLICE, FIRST_ITEM = 4, 5
local uid, call_id, max_age, encoding = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local packed, refusal = read_digests(encoding, FIRST_ITEM)
if not packed then return refusal end
if max_age ~= '0' then return redis.error_reply('BADARG max_age is 0 when forgetting') end

local meta, slices, this
meta, refusal = read_meta(uid, FIRST_SLICE)
if not meta then return refusal end
this, refusal = open_call(call_id, packed)
if not this then return refusal end
if this.answers then return this.answers end
slices, refusal = live_slices(meta, FIRST_SLICE)
if not slices then return refusal end
refusal = check_shard(meta, packed)
if refusal then return refusal end

local today = slices[#slices]
local was_there, changed = {}, false
for i = 1, #packed / 16 do
  was_there[i] = 0
  if not this.changed_nothing and has(today, struct.unpack('<I4I4I4I4', packed, i * 16 - 15)) then
    was_there[i] = redis.call('ZADD', KEYS[3], 'NX', meta.epoch, string.sub(packed, i * 16 - 15, i * 16))
    changed = changed or was_there[i] == 1
  end
end

if changed then
  record_call(this, was_there)
elseif not this.changed_nothing then
  record_call(this)
end
return was_there
