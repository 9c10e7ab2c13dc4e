-- Note that the live slices hold nothing older than an epoch any more, and drop the counts of what has expired.
-- (What was forgotten before is new anyway; the script expire removes it, some at a time.)
local function set_oldest(closed, oldest)
  local kept = {}
  for entry in string.gmatch(closed, '%S+') do
    if tonumber(string.match(entry, '^%d+')) >= oldest then
      kept[#kept + 1] = entry
    end
  end
  redis.call('HSET', KEYS[1], 'closed', table.concat(kept, ' '), 'oldest', oldest)
end
