-- A holder may live until a time that lies too far ahead, because this server's clock was set back. Then it lives for the
-- longest lease from now: an item must not be withheld for longer.
-- Needs: call, MOST_DELAY (nobodies live as long as an item was released for), HOLDERS.

local function mend_far(now, longest)
  local last = string.format('%.0f', now + math.max(tonumber(longest or 0), MOST_DELAY))
  local latest = call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if latest[2] and tonumber(latest[2]) > tonumber(last) then
    for _, holder in ipairs(call('ZRANGEBYSCORE', HOLDERS, '(' .. last, '+inf', 'LIMIT', 0, 100)) do
      call('ZADD', HOLDERS, last, holder)
    end
  end
end
