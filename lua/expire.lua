-- expire: remove digests that were forgotten in epochs older than every live slice. Their items have expired and are
-- new anyway. So this may happen late, and some digests at a time.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] limit: the most digests to remove
--
-- Reply: how many digests were removed.
-- Errors: NOFILTER, MISMATCH, BADARG

-- @include "_keys.lua"

local uid, limit = ARGV[1], tonumber(ARGV[2])
local refusal = check_keys({ 'forgotten' })
if refusal then return refusal end
local meta = redis.call('HMGET', KEYS[1], 'uid', 'oldest')
if not meta[1] then return redis.error_reply('NOFILTER there is no filter here') end
if meta[1] ~= uid then return redis.error_reply('MISMATCH the filter was dropped and created anew') end
if not limit or limit < 1 or limit > 5000 then return redis.error_reply('BADARG limit is 1 to 5000') end

local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. (meta[2] or 0), 'LIMIT', 0, limit)
return #expired > 0 and redis.call('ZREM', KEYS[2], unpack(expired)) or 0
