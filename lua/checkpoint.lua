-- checkpoint: number a checkpoint of a shard when it begins, and note its time when it is finished.
-- The number is in meta before the slices are read. So a server that comes back with a lower number is older than the
-- archive.
--
-- KEYS[1] meta
--
-- ARGV[1] step: begin or finish
-- ARGV[2] uid: the filter's uid
-- ARGV[3] number: begin: the number of the archive's last checkpoint; finish: the number of this one
-- ARGV[4] begun: finish: the server time at which it began, ms; else 0
--
-- The later of this and the last checkpoint's time is kept. A last time in the future (this server's clock was ahead)
-- does not count.
--
-- Reply: meta as it is now, an array of field and value in turn.
-- Errors: NOFILTER, MISMATCH, FORMAT, RESTORING, BADARG

-- @include "_shard.lua" keys identity
-- @include "_time.lua" now

local meta_key = KEYS[1]
local step, uid, number, begun = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local refusal = check_keys({})
if refusal then return refusal end
local meta = redis.call('HMGET', meta_key, 'uid', 'phase', 'checkpoint', 'checkpointed', 'format')
refusal = check_identity(meta[1], meta[5], uid)
if refusal then
  return refusal
elseif meta[2] == 'dropping' then
  return redis.error_reply('NOFILTER there is no filter here')
elseif meta[2] == 'restoring' then
  return redis.error_reply('RESTORING the filter is being restored from its archive')
end

if step == 'begin' then
  local last = math.max(number, tonumber(meta[3] or 0))
  redis.call('HSET', meta_key, 'checkpoint', string.format('%.0f', last + 1))
elseif step == 'finish' then
  local now, last = tonumber(now_ms()), tonumber(meta[4] or 0)
  if last > now then last = 0 end
  redis.call('HSET', meta_key, 'checkpointed', string.format('%.0f', math.max(math.min(begun, now), last)))
else
  return redis.error_reply('BADARG checkpoint takes the steps begin and finish')
end
return redis.call('HGETALL', meta_key)
