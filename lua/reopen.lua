-- reopen: if today was opened in the future by this server's clock, it was opened now: so what is due a period after that
-- comes late, and not when that future has passed. The clock was ahead then, or is behind now: in the second case it will
-- be right again, and then the time that was written over counts. Which it is nobody knows, so meta keeps both.
--
-- KEYS[1] meta
--
-- ARGV[1] uid: of the filter
--
-- Reply: 1 if it was opened in the future, else 0.
-- Errors: NOFILTER, MISMATCH, BADARG

-- @include "_keys.lua"
-- @include "_now.lua"

local MOST = 300 -- bytes of the times that are kept; a clock that is set back more often than some twenty times in a period

local meta_key, uid = KEYS[1], ARGV[1]
local refusal = check_keys({})
if refusal then return refusal end
local meta = redis.call('HMGET', meta_key, 'uid', 'opened', 'ahead')
if not meta[1] then return redis.error_reply('NOFILTER there is no filter here') end
if meta[1] ~= uid then return redis.error_reply('MISMATCH the filter was dropped and created anew') end

local now, opened, ahead = now_ms(), meta[2] or '0', meta[3] or ''
if tonumber(opened) <= tonumber(now) then return 0 end
if #ahead < MOST then ahead = ahead .. ' ' .. opened end
redis.call('HSET', meta_key, 'opened', now, 'ahead', ahead)
return 1
