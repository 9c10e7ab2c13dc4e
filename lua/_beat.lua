-- The beat of a holder: it lives for a lease from now, if it has anything in hand here; else it is removed. It is the last
-- write of a call.
-- Needs: call, own, lease, last_of, MOST_DELAY, HANDS, HOLDERS.

local function time_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function has_hands(holder)
  return #call('ZRANGEBYLEX', HANDS, '[' .. holder, last_of(holder), 'LIMIT', 0, 1) > 0
end

-- A user may lack the right to a command: so all that a beat needs are tried before the first write of a call. ZADD
-- comes first, because a server at maxmemory refuses it.
local function try_beating()
  call('ZADD', HOLDERS, 'XX', 0, '')
  call('ZREM', HOLDERS, '')
  call('ZRANGEBYLEX', HANDS, '-', '-')
end

-- now: ms. has_some: whether it certainly has something in hand here.
local function beat(now, has_some)
  if not has_some and not has_hands(own) then
    call('ZREM', HOLDERS, own)
    return
  end
  -- Who lives for longer than the longest lease that meta knows would be taken for one of a clock that was set back.
  if lease > MOST_DELAY and lease > tonumber(call('HGET', KEYS[1], 'claims') or 0) then
    call('HSET', KEYS[1], 'claims', lease)
  end
  call('ZADD', HOLDERS, string.format('%.0f', now + lease), own)
end
