-- The beat of a holder: it lives for a lease from now, if it has anything in hand here; else it is removed. It is the last
-- write of a call.
-- Needs: own, lease, last_of, HANDS, HOLDERS.

local function time_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- now: ms. has_some: whether it certainly has something in hand here.
local function beat(now, has_some)
  if has_some or #redis.call('ZRANGEBYLEX', HANDS, '[' .. own, last_of(own), 'LIMIT', 0, 1) > 0 then
    redis.call('ZADD', HOLDERS, string.format('%.0f', now + lease), own)
  else
    redis.call('ZREM', HOLDERS, own)
  end
end
