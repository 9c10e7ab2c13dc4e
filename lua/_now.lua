-- Returns the server's time in ms, as text with all digits.
local function now_ms()
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
