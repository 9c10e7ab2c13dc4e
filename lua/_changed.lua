-- Notes a change of slices or forgotten digests, for the next checkpoint. Insertions need no note: they are counted.
local function note_change()
  local last = tonumber(redis.call('HGET', KEYS[1], 'changed') or 0)
  redis.call('HSET', KEYS[1], 'changed', string.format('%.0f', math.max(tonumber(now_ms()), last + 1)))
end
