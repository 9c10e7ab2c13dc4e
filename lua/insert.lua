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
-- @include "_$layout.lua"
-- @include "_insert_$layout.lua"

local FIRST_SLICE, FIRST_ITEM = 4, 5
local uid, call_id, max_age, encoding = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local packed, refusal = read_digests(encoding, FIRST_ITEM)
if not packed then return refusal end
if max_age ~= '0' then return redis.error_reply('BADARG max_age is 0 for this retention') end

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
local any_forgotten = redis.call('EXISTS', KEYS[3]) == 1
local ages, inserted = {}, 0
local unpack_digest = struct.unpack
for i = 1, #packed / 16 do
  ages[i] = 1
  if not this.changed_nothing then -- a repeat of a call that found everything seen finds so again
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
  record_call(this, ages)
elseif not this.changed_nothing then
  record_call(this)
end
return ages
