local SILENCE = 15000 -- ms, after which a restorer counts as dead

-- Whether a restorer that has beaten last at some time is at it still; ``ended`` are tokens of those that are not.
local function lives(restorer, beaten, ended)
  if not restorer or string.find(' ' .. ended .. ' ', ' ' .. restorer .. ' ', 1, true) then return false end
  local silence = now_ms() - beaten
  if silence < 0 then beat() end -- the clock was ahead: from now on it is silent
  return silence < SILENCE
end
