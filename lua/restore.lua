-- restore: bring a shard back from its archive: what meta says of it. While its phase is restoring nobody else reads
-- or writes its slices; refill brings their bytes. A restorer that has been silent for long is taken over, and one that
-- has given up at once; one that was heard in the future, as this server's clock was ahead, was heard now.
--
-- KEYS[1] meta
-- KEYS[2…] slices: arrange: in pairs, a slice and the name that it gets; finish: the live ones
--
-- ARGV[1] step: begin, beat (to show that this restorer lives), arrange, finish; or, to give up, cancel (it is again
--   what it was, unless it was arranged) or release (it stays as it is, for whoever comes next)
-- ARGV[2] uid: of the filter
-- ARGV[3] token: of this restorer
-- ARGV[4] timeline: begin: of the meta that was seen, or missing: otherwise another process was faster; else -
-- ARGV[5] given up: begin: tokens of restorers that are known to have ended, with spaces between, or -; else -
-- ARGV[6…] fields: of meta, field and value in turn: begin: if it is missing; arrange: what the shard is to be, with
--   its phase as "before"; finish: its phase, and the numbers that are known now
--
-- Reply: begin: meta as it was found, an array of field and value in turn, empty if it was missing; else 1.
-- Errors: NOFILTER, MISMATCH, LOST, RESTORING, BADPHASE, BADARG

-- @include "_keys.lua"
-- @include "_now.lua"
-- @include "_restorer.lua"
-- @include "_lives.lua"
-- @include "_check_slices.lua"
-- @include "_try_renaming.lua"

local meta_key = KEYS[1]
local step, uid, token, timeline, given_up = unpack(ARGV)
local refusal = check_keys({}, '^[th]%a*_?%w*$')
if refusal then return refusal end

if step == 'begin' then
  local found = redis.call('HMGET', meta_key, 'uid', 'phase', 'restorer', 'restored', 'timeline')
  if found[1] and found[1] ~= uid then
    return redis.error_reply('MISMATCH there is another filter of this name')
  elseif found[2] == 'dropping' then
    return redis.error_reply('NOFILTER the filter is being dropped')
  elseif found[2] == 'restoring' and found[3] ~= token and lives(found[3], found[4], given_up) then
    return redis.error_reply('RESTORING another process is restoring the filter')
  elseif found[2] ~= 'restoring' and (found[1] and found[5] or not found[1] and 'missing' or '') ~= timeline then
    return redis.error_reply('BADPHASE another process was faster')
  elseif not found[1] and #ARGV < 7 then
    return redis.error_reply('BADARG meta is missing, and there are no fields for it')
  end
  local meta = redis.call('HGETALL', meta_key)
  if not found[1] then
    redis.call('HSET', meta_key, 'uid', uid, 'created', now_ms(), 'before', 'missing', unpack(ARGV, 6))
  elseif found[2] ~= 'restoring' then
    redis.call('HSET', meta_key, 'before', found[2])
  end
  redis.call('HSET', meta_key, 'phase', 'restoring', 'restorer', token, 'restored', now_ms())
  return meta
end

if step == 'finish' and redis.call('HGET', meta_key, 'timeline') == token then return 1 end -- its reply was lost
refusal = fence_restorer(uid, token)
if refusal then return refusal end
if step == 'arrange' then
  if redis.call('HGET', meta_key, 'arranged') == token then return 1 end -- likewise; never rename twice
  if #KEYS > 1 then try_renaming(KEYS[2]) end
  redis.call('HDEL', meta_key, 'token', 'pieces', 'late', 'limit')
  redis.call('HSET', meta_key, 'arranged', token, unpack(ARGV, 6))
  beat()
  for i = 2, #KEYS, 2 do
    if KEYS[i] ~= KEYS[i + 1] then redis.call('RENAME', KEYS[i], KEYS[i + 1]) end
  end
elseif step == 'finish' then
  refusal = check_slices(redis.call('HGET', meta_key, 'slices'))
  if refusal then return refusal end
  redis.call('HSET', meta_key, 'timeline', token, unpack(ARGV, 6))
  redis.call('HDEL', meta_key, 'restorer', 'restored', 'before', 'arranged', 'worked')
elseif step == 'cancel' or step == 'release' then
  local before, arranged = unpack(redis.call('HMGET', meta_key, 'before', 'arranged'))
  if arranged or step == 'release' then
    redis.call('HSET', meta_key, 'restored', 0)
    redis.call('HDEL', meta_key, 'restorer')
  elseif before == 'missing' then
    redis.call('UNLINK', meta_key)
  else
    redis.call('HSET', meta_key, 'phase', before)
    redis.call('HDEL', meta_key, 'restorer', 'restored', 'before')
  end
elseif step == 'beat' then
  beat()
else
  return redis.error_reply('BADARG restore takes begin, beat, arrange, finish, cancel and release')
end
return 1
