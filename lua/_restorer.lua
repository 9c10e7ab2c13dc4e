-- The fence of a restore's steps: one restorer at a time writes; another takes over if it is silent for too long.

-- Returns a refusal, or nil.
local function fence_restorer(uid, token)
  local values = redis.call('HMGET', KEYS[1], 'uid', 'phase', 'restorer')
  if not values[1] then
    return redis.error_reply('NOFILTER there is no filter here')
  elseif values[1] ~= uid then
    return redis.error_reply('MISMATCH the filter was dropped and created anew')
  elseif values[2] ~= 'restoring' or values[3] ~= token then
    return redis.error_reply('BADPHASE another process has taken over')
  end
end

-- Notes a sign of life of the restorer.
local function beat()
  redis.call('HSET', KEYS[1], 'restored', now_ms())
end
