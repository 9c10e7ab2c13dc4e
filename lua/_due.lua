-- Whether a period is over. Today closes a period after it was opened, or when it was last written to, if that was
-- later.
-- call: refuses a call that must be preceded by a turn. turn: a function that refuses a turn that is too early.

-- @section call
-- Refuses a marked call, before any write, if this shard should have gone forward by more than one epoch: after a write
-- of the call it could go forward by one only. So the caller turns it first, and before that finishes a turn that was
-- left.
-- Needs: marked, now, changed_nothing, phase, values (of meta), policy.
-- Gives: timed (whether slices close by time), written (the field of meta).

local timed, opened, written, period = string.byte(policy) == 114, values[8], values[9], values[10] -- r: ring, rolling
if marked and timed and opened and period and (phase == 'idle' or phase == 'rotating') and not changed_nothing
  and now >= math.max(opened + period, written or 0) + period then
  return redis.error_reply('DUE a period was missed: the shard must turn first')
end

-- @section turn
-- Whether a shard may go forward now because a period is over. The epochs that are passed over have no slices, because
-- nothing was written in them. Today was opened at the latest recorded time that is not in the future. If all are,
-- because this server's clock was ahead, that time is now: late, never early. Likewise a time of writing in the future.
-- Needs: now_ms.
-- Gives: check_due.

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
