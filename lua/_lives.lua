local SILENCE = 15000 -- ms of silence after which a restorer counts as dead

-- Returns whether a restorer is alive. beaten: the time of its last sign of life; ended: tokens of ended restorers.
local function lives(restorer, beaten, ended)
  if not restorer or string.find(' ' .. ended .. ' ', ' ' .. restorer .. ' ', 1, true) then return false end
  local silence = now_ms() - beaten
  if silence < 0 then beat() end -- this server's clock was ahead: the silence counts from now on
  return silence < SILENCE
end
