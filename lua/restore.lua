-- restore: restore a shard's meta; refill restores its contents.
-- In phase restoring no other process uses its slices. After a long silence another restorer takes over, and at once
-- after one that has given up. A sign of life in the future (this server's clock was ahead) counts as given now.
--
-- KEYS[1] meta
-- KEYS[2…] slices: arrange: pairs of an old and a new name of a bitmap; finish: the bitmaps of the live slices
--
-- ARGV[1] step: begin, beat (a sign of life), arrange, finish, cancel (give up: the shard is again as it was, unless it
--   was arranged) or release (give up: the shard stays as it is, for the next restorer)
-- ARGV[2] uid: the filter's uid
-- ARGV[3] token: the token of this restorer
-- ARGV[4] timeline: begin: the timeline of meta as it was read, or missing; if it is another now, BADPHASE; arrange,
--   finish: the number of this step, as of refill; else -
-- ARGV[5] given up: begin: tokens of restorers that have ended, with spaces between, or -; else -
-- ARGV[6…] fields: fields of meta, field and value in turn: begin: for a missing meta; arrange: the shard's new
--   state, with its phase as "before"; finish: the new phase, and the numbers that are known by then
--
-- Reply: begin: meta as it was, an array of field and value in turn, empty if it was missing; else 1.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, RESTORING, BADPHASE, BADARG

-- @include "_shard.lua" keys
-- @include "_time.lua" now
-- @include "_shard.lua" identity
-- @include "_restorer.lua" fence steps lives
-- @include "_slices.lua" lengths
-- @include "_try.lua" renaming

local meta_key = KEYS[1]
local step, uid, token, timeline, given_up = unpack(ARGV)
local refusal = check_keys({}, '^[th]%a*_?%w*%.?%d*$')
if refusal then return refusal end

if step == 'begin' then
  local values = redis.call('HMGET', meta_key, 'uid', 'phase', 'restorer', 'restored', 'timeline', 'format')
  local found, phase, restorer, beaten, last_timeline, format = unpack(values)
  local present = 'missing'
  if found then present = last_timeline or '' end
  refusal = found and check_identity(found, format, uid)
  if refusal then
    return refusal
  elseif phase == 'dropping' then
    return redis.error_reply('NOFILTER the filter is being dropped')
  elseif phase == 'restoring' and restorer ~= token and lives(restorer, beaten, given_up) then
    return redis.error_reply('RESTORING another process is restoring the filter')
  elseif phase ~= 'restoring' and present ~= timeline then
    return redis.error_reply('BADPHASE another process was faster')
  elseif not found and #ARGV < 7 then
    return redis.error_reply('BADARG meta is missing, and there are no fields for it')
  end
  local meta = redis.call('HGETALL', meta_key)
  if not found then
    redis.call('HSET', meta_key, 'uid', uid, 'created', now_ms(), 'before', 'missing', unpack(ARGV, 6))
  elseif phase ~= 'restoring' then
    redis.call('HSET', meta_key, 'before', phase)
  end
  if restorer ~= token then redis.call('HDEL', meta_key, 'refilled') end
  redis.call('HSET', meta_key, 'phase', 'restoring', 'restorer', token, 'restored', now_ms())
  return meta
end

if step == 'finish' and redis.call('HGET', meta_key, 'timeline') == token then return 1 end -- a repeat
refusal = fence_restorer(uid, token)
if refusal then return refusal end
if step == 'arrange' then
  if redis.call('HGET', meta_key, 'arranged') == token then return 1 end -- a repeat, which must not rename again
  refusal = note_step(tonumber(timeline))
  if refusal then return refusal end
  if #KEYS > 1 then try_renaming(KEYS[2]) end
  redis.call('HDEL', meta_key, 'token', 'pieces', 'late', 'limit', 'written')
  redis.call('HSET', meta_key, 'arranged', token, unpack(ARGV, 6))
  beat()
  for i = 2, #KEYS, 2 do
    if KEYS[i] ~= KEYS[i + 1] then redis.call('RENAME', KEYS[i], KEYS[i + 1]) end
  end
elseif step == 'finish' then
  refusal = note_step(tonumber(timeline)) or check_slices(redis.call('HGET', meta_key, 'slices'))
  if refusal then return refusal end
  redis.call('HSET', meta_key, 'timeline', token, unpack(ARGV, 6))
  redis.call('HDEL', meta_key, 'restorer', 'before', 'arranged', 'worked', 'kept', 'refilled', 'made')
  beat()
elseif step == 'cancel' or step == 'release' then
  local before, arranged = unpack(redis.call('HMGET', meta_key, 'before', 'arranged'))
  if arranged or step == 'release' then
    redis.call('HDEL', meta_key, 'restorer')
  elseif before == 'missing' then
    redis.call('UNLINK', meta_key)
  else
    redis.call('HSET', meta_key, 'phase', before)
    redis.call('HDEL', meta_key, 'restorer', 'before', 'refilled')
  end
elseif step == 'beat' then
  beat()
else
  return redis.error_reply('BADARG restore takes begin, beat, arrange, finish, cancel and release')
end
return 1
