-- store: write a closed slice, compressed, beside the filter, or delete it once it has expired.
-- This is for rolling with Redis itself as the archive.
--
-- KEYS[1] meta
-- KEYS[2] archived: hash: piece number -> compressed piece, and the manifest
--
-- ARGV[1] step: write or delete
-- ARGV[2] uid: the filter's uid
-- ARGV[3] epoch: the shard's present epoch
-- ARGV[4] token: the token of this rotation
-- ARGV[5] field: write: a piece's number, or manifest; else empty
-- ARGV[6] data: write: its bytes; else empty
--
-- Reply: 1.
-- Errors: NOFILTER, MISMATCH, FORMAT, RESTORING, BADPHASE, BADARG

-- @include "_shard.lua" keys identity
-- @include "_rotation.lua" fence

local archived_key = KEYS[2]
local step, uid, epoch, token, field, data = unpack(ARGV)
local refusal = check_keys({}, '^slice:%d+$')
if refusal then return refusal end
local meta
refusal, meta = fence(uid, epoch, 'rotating', token)
if refusal then return refusal end

if step == 'write' then
  if meta.pieces then
    return redis.error_reply('BADPHASE the closed slice is in the archive already')
  end
  redis.call('HSET', archived_key, field, data)
elseif step == 'delete' then
  redis.call('UNLINK', archived_key)
else
  return redis.error_reply('BADARG store takes the steps write and delete')
end
return 1
