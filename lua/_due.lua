-- Whether a shard may go forward now because a period is over. Today closes a period after it was opened, or when it was
-- last written to if that was later; and no other slice of the epochs that are passed over had anything. It was opened at
-- the latest recorded time that is not in the future. If all are, because this server's clock was ahead, it is now: late,
-- never early. Likewise a time of writing in the future.
-- period: ms; 0: there is no refusal. by: the number of epochs.
-- Returns a refusal, or nil and the least time at which the next today counts as opened.
local function check_due(period, by)
  if period == 0 then return end
  local opened, ahead, written = unpack(redis.call('HMGET', KEYS[1], 'opened', 'ahead', 'written'))
  local now, latest = tonumber(now_ms())
  for text in string.gmatch(opened .. ' ' .. (ahead or ''), '%d+') do
    local time = tonumber(text)
    if time <= now and time > (latest or -1) then latest = time end
  end
  local opens = math.max((latest or now) + period, math.min(tonumber(written or 0), now)) + (by - 1) * period
  if now < opens then
    return redis.error_reply('BADPHASE a period has not passed since the shard turned or was written to')
  end
  return nil, opens
end
