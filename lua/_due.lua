-- Returns a refusal before a period has passed since today was opened. That is the latest recorded time that is not in
-- the future. If all are, because this server's clock was ahead, it is now: late, never early.
-- period: ms; 0: there is no refusal.
local function check_due(period)
  if tonumber(period) == 0 then return end
  local opened, ahead = unpack(redis.call('HMGET', KEYS[1], 'opened', 'ahead'))
  local now, latest = tonumber(now_ms())
  for text in string.gmatch(opened .. ' ' .. (ahead or ''), '%d+') do
    local time = tonumber(text)
    if time <= now and time > (latest or -1) then latest = time end
  end
  if now < (latest or now) + period then
    return redis.error_reply('BADPHASE a period has not passed since the shard turned')
  end
end
