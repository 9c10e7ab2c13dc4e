-- A holder may live until a time that lies too far ahead, because this server's clock was set back. Then it lives for the
-- longest lease from now: an item must not be withheld for longer.
local LONGEST_DELAY = 10 * 60 * 1000 -- ms: nobodies live as long as an item was released for

local function mend_far(now, longest)
  local last = now + math.max(tonumber(longest or 0), LONGEST_DELAY)
  local latest = redis.call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if latest[2] and tonumber(latest[2]) > last then
    for _, holder in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. string.format('%.0f', last), '+inf', 'LIMIT', 0, 100)) do
      redis.call('ZADD', HOLDERS, string.format('%.0f', last), holder)
    end
  end
end
