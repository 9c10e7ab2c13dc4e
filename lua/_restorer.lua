-- What fences the steps of a restore: one restorer at a time writes, and another takes over when it has been silent.

-- Returns the refusal, or nil.
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

-- The restorer shows that it lives.
local function beat()
  redis.call('HSET', KEYS[1], 'restored', now_ms())
end
