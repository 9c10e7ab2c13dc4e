-- Notes the oldest epoch of the live slices, and drops the entries of older ones from closed. (Older forgotten digests
-- do no harm, because their items have expired; the script expire removes them, some at a time.)
local function set_oldest(closed, oldest)
  local kept = {}
  for entry in string.gmatch(closed, '%S+') do
    if tonumber(string.match(entry, '^%d+')) >= oldest then
      kept[#kept + 1] = entry
    end
  end
  redis.call('HSET', KEYS[1], 'closed', table.concat(kept, ' '), 'oldest', oldest)
end
