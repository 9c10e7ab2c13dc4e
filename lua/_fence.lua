-- The fence of a rotation's steps: a step runs in one epoch and one phase, and after the turn for one token.

-- Returns a refusal, or nil and the values of meta that the steps need.
local function fence(uid, epoch, phase, token)
  local values = redis.call('HMGET', KEYS[1], 'uid', 'epoch', 'phase', 'token', 'pieces', 'slices', 'format')
  local meta = {
    uid = values[1], epoch = values[2], phase = values[3], token = values[4], pieces = tonumber(values[5] or nil),
    slices = values[6],
  }
  local refusal = check_identity(meta.uid, values[7], uid)
  if refusal then
    return refusal
  elseif meta.phase == 'dropping' then
    return redis.error_reply('NOFILTER there is no filter here')
  elseif meta.phase == 'restoring' then
    return redis.error_reply('RESTORING the filter is being restored from its archive')
  elseif meta.epoch ~= epoch or meta.phase ~= phase or (token and meta.token ~= token) then
    return redis.error_reply('BADPHASE the shard is in epoch ' .. meta.epoch .. ', ' .. meta.phase)
  end
  return nil, meta
end
