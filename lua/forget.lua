-- forget: make items new once more, in any layout. Their digests go into a sorted set that the other scripts consult.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4…] slices: the live slices, from oldest to newest
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (deadline: server time in ms), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array of one integer an item: 1 = it was seen and is new once more, 0 = it was not seen.
-- Errors: NOFILTER, MISMATCH, LOST, STALE, RESTORING, OLDCALL, LATECALL, BADARG

-- @include "_filter.lua"
-- @include "_items.lua"
-- @include "_call.lua"
-- @include "_begin.lua"
-- @include "_$layout.lua"
-- @include "_has_$layout.lua"
-- @include "_age.lua"
-- @include "_now.lua"
-- @include "_changed.lua"
-- @include "_forgotten.lua"

local FIRST_SLICE = 4

local job, reply = begin(FIRST_SLICE, open_call)
if not job then return reply end
local packed, tested = job.packed, job.tested
local was_there, changed = {}, false

for i = 1, job.count do
  was_there[i] = 0
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  if not job.call.changed_nothing and age_in(tested, struct.unpack('<I4I4I4I4', digest)) > 0
    and not redis.call('ZSCORE', KEYS[3], digest) then
    if not changed then -- before the first digest, because a user may lack the right to these commands
      note_change()
      remove_old_records(job.call)
      changed = true
    end
    was_there[i] = redis.call('ZADD', KEYS[3], forgotten_score(job.meta.epoch), digest)
  end
end

if changed then
  record_call(job.call, was_there)
elseif not job.call.changed_nothing then
  record_call(job.call)
end
return was_there
