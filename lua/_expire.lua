-- What goes when the live slices hold nothing older than an epoch any more: counts, and what was forgotten before.
local function expire(closed, oldest)
  local kept = {}
  for entry in string.gmatch(closed, '%S+') do
    if tonumber(string.match(entry, '^%d+')) >= oldest then
      kept[#kept + 1] = entry
    end
  end
  redis.call('HSET', KEYS[1], 'closed', table.concat(kept, ' '), 'oldest', oldest)
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', oldest - 1)
end
