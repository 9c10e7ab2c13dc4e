-- upgrade: convert one shard from format 1 to format 2, in one write. Format 2 has the values that never change in one
-- field, and a layout that the scripts of format 1 refuse in words.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] fixed: the field fixed of format 2
-- ARGV[3] layout: the field layout of format 2
--
-- Reply: 1 if the shard was of format 1, else 0.
-- Errors: NOFILTER, MISMATCH, FORMAT, RESTORING, BADPHASE, BADARG

-- @include "_keys.lua"
-- @include "_identity.lua"

local meta_key, forgotten_key = KEYS[1], KEYS[2]
local uid, fixed, layout = unpack(ARGV)
local refusal = check_keys({ 'forgotten' }, '^$')
if refusal then return refusal end
local found, format, phase, changed, own_layout, k, shard, shards = unpack(redis.call('HMGET', meta_key, 'uid', 'format',
  'phase', 'changed', 'layout', 'k', 'shard', 'shards'))
refusal = check_identity(found, format, uid)
if refusal then
  return refusal
elseif phase == 'dropping' then
  return redis.error_reply('NOFILTER the filter is being dropped')
elseif phase == 'restoring' then
  return redis.error_reply('RESTORING the filter is being restored from its archive')
elseif phase == 'creating' then
  return redis.error_reply('BADPHASE the filter is being made')
elseif format ~= '1' then
  return 0
elseif string.find(fixed, table.concat({ uid, own_layout, k, '' }, ' '), 1, true) ~= 1
  or string.match(fixed, ' (%S+)$') ~= shard .. '/' .. shards then
  return redis.error_reply('BADARG fixed is of another shard or layout than meta')
end

local fields = { 'format', 2, 'fixed', fixed, 'layout', layout }
-- Scripts look for forgotten digests only if meta notes a change. In format 1 a digest may be there without that. The
-- time 0 is no change for checkpoints.
if not changed and redis.call('EXISTS', forgotten_key) == 1 then
  fields[7], fields[8] = 'changed', 0
end
redis.call('HSET', meta_key, unpack(fields))
return 1
