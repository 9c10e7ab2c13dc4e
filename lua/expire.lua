-- expire: remove digests that were forgotten in epochs older than every live slice.
-- Their items have expired and are new anyway. So this may happen late, and some digests at a time.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] limit: the most digests to remove
--
-- Reply: how many digests were removed.
-- Errors: NOFILTER, MISMATCH, FORMAT, BADARG

-- @include "_shard.lua" keys identity

local uid, limit = ARGV[1], tonumber(ARGV[2])
local refusal = check_keys({ 'forgotten' })
if refusal then return refusal end
local meta = redis.call('HMGET', KEYS[1], 'uid', 'oldest', 'format')
refusal = check_identity(meta[1], meta[3], uid)
if refusal then return refusal end
if not limit or limit < 1 or limit > 5000 then return redis.error_reply('BADARG limit is 1 to 5000') end

local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. (meta[2] or 0), 'LIMIT', 0, limit)
return #expired > 0 and redis.call('ZREM', KEYS[2], unpack(expired)) or 0
