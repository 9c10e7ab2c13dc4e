-- The steps of a restore. One restorer at a time writes; another takes over if it is silent for too long.
-- fence: whether a step may run, and signs of life. steps: whether one is missing, or comes late. lives: whether another
-- restorer is alive.

-- @section fence
-- Needs: check_identity, now_ms.
-- Gives: fence_restorer, beat.

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

-- @section steps
-- The steps that write a shard (arrange, those of refill, finish) have numbers: 1, 2 and so on. One that comes once more
-- after a later one, as a network may deliver it, would remove what has been restored since. One whose predecessor is
-- missing comes to a server that came back as it was before that.
-- Gives: note_step.

-- Notes the number of a step that begins. Returns a refusal, or nil. The last one may come once more.
local function note_step(number)
  local last = tonumber(redis.call('HGET', KEYS[1], 'refilled') or 0)
  if number < last then
    return redis.error_reply('BADPHASE the step comes once more, after a later one')
  elseif number > last + 1 then
    return redis.error_reply('BADPHASE this server has lost steps before this one')
  end
  redis.call('HSET', KEYS[1], 'refilled', string.format('%.0f', number))
end

-- @section lives
-- Needs: now_ms, beat.
-- Gives: lives.
local SILENCE = 15000 -- ms of silence after which a restorer counts as dead

-- Returns whether a restorer is alive. beaten: the time of its last sign of life; ended: tokens of ended restorers.
local function lives(restorer, beaten, ended)
  if not restorer or string.find(' ' .. ended .. ' ', ' ' .. restorer .. ' ', 1, true) then return false end
  local silence = now_ms() - beaten
  if silence < 0 then beat() end -- this server's clock was ahead: the silence counts from now on
  return silence < SILENCE
end
