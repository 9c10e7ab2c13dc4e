-- reopen: if meta says that today was opened in the future, set that time to now.
-- Otherwise the next rotation would have to wait until a period after that future. Either this server's clock was ahead
-- then, or it is behind now. In the second case the overwritten time was right. Nothing tells the cases apart, so meta
-- keeps the old times, in "ahead".
--
-- KEYS[1] meta
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] doubt: 1 if a client's clock disagrees with this server's: nothing tells then when today was written to, and the
--   shard passes over no periods until it has turned; else 0
--
-- Reply: 1 if the time was in the future, else 0.
-- Errors: NOFILTER, MISMATCH, FORMAT, BADARG

-- @include "_shard.lua" keys identity
-- @include "_time.lua" now

local MOST = 300 -- bytes of ahead: room for some twenty times, should the clock be set back often within a period

local meta_key, uid = KEYS[1], ARGV[1]
local refusal = check_keys({})
if refusal then return refusal end
local meta = redis.call('HMGET', meta_key, 'uid', 'opened', 'ahead', 'format')
refusal = check_identity(meta[1], meta[4], uid)
if refusal then return refusal end

if ARGV[2] == '1' then redis.call('HSET', meta_key, 'written', '999999999999999') end -- see _written
local now, opened, ahead = now_ms(), meta[2] or '0', meta[3] or ''
if tonumber(opened) <= tonumber(now) then return 0 end
if #ahead < MOST then ahead = ahead .. ' ' .. opened end
redis.call('HSET', meta_key, 'opened', now, 'ahead', ahead)
return 1
