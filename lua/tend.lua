-- tend: let one process at a time rotate a filter: a worker, or a client that inserts.
-- Two at a time do no harm, but do the work twice. It also removes the note of a restore, once somebody knows of it.
--
-- KEYS[1] meta
--
-- ARGV[1] step: take (or prolong), release, or acknowledge
-- ARGV[2] uid: the filter's uid
-- ARGV[3] token: the token of this process; acknowledge: the note as it was read
-- ARGV[4] time: take: the ms for which the lease holds; else 0
--
-- Another process's lease that ends more than this time from now (this server's clock was ahead) counts as taken now.
--
-- Reply: take: 1 if this process has the lease now; release: 1 if the lease is free now;
--   acknowledge: 1 if the note was there; else 0.
-- Errors: NOFILTER, MISMATCH, FORMAT, BADARG

-- @include "_shard.lua" keys identity
-- @include "_time.lua" now

local meta_key = KEYS[1]
local step, uid, token, time = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local refusal = check_keys({})
if refusal then return refusal end
local meta = redis.call('HMGET', meta_key, 'uid', 'worker', 'leased', 'format')
refusal = check_identity(meta[1], meta[4], uid)
if refusal then return refusal end

if step == 'acknowledge' then
  if redis.call('HGET', meta_key, 'lost') ~= token then return 0 end
  return redis.call('HDEL', meta_key, 'lost')
end

local now = tonumber(now_ms())
local function lease(worker)
  redis.call('HSET', meta_key, 'worker', worker, 'leased', string.format('%.0f', now + time))
end

if meta[2] and meta[2] ~= token and now < tonumber(meta[3]) then
  if step == 'take' and tonumber(meta[3]) > now + time then lease(meta[2]) end
  return 0
elseif step == 'take' then
  lease(token)
elseif step == 'release' then
  redis.call('HDEL', meta_key, 'worker', 'leased')
else
  return redis.error_reply('BADARG tend takes the steps take, release and acknowledge')
end
return 1
