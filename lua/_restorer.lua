-- The fence of a restore's steps: one restorer at a time writes; another takes over if it is silent for too long.

-- Returns a refusal, or nil.
local function fence_restorer(uid, token)
  local values = redis.call('HMGET', KEYS[1], 'uid', 'phase', 'restorer', 'format')
  local refusal = check_identity(values[1], values[4], uid)
  if refusal then
    return refusal
  elseif values[2] ~= 'restoring' or values[3] ~= token then
    return redis.error_reply('BADPHASE another process has taken over')
  end
end

-- Notes a sign of life of the restorer.
local function beat()
  redis.call('HSET', KEYS[1], 'restored', now_ms())
end
