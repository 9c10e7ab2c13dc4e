-- reopen: if today was opened in the future, as this server's clock was ahead, it was opened now: what is due a period
-- after that comes late then, and not when that future has passed.
--
-- KEYS[1] meta
--
-- ARGV[1] uid: of the filter
--
-- Reply: 1 if it was opened in the future, else 0.
-- Errors: NOFILTER, MISMATCH, BADARG

-- @include "_keys.lua"
-- @include "_now.lua"

local meta_key, uid = KEYS[1], ARGV[1]
local refusal = check_keys({})
if refusal then return refusal end
local meta = redis.call('HMGET', meta_key, 'uid', 'opened')
if not meta[1] then return redis.error_reply('NOFILTER there is no filter here') end
if meta[1] ~= uid then return redis.error_reply('MISMATCH the filter was dropped and created anew') end

local now = now_ms()
if tonumber(meta[2] or 0) <= tonumber(now) then return 0 end
redis.call('HSET', meta_key, 'opened', now)
return 1
