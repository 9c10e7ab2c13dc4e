-- A user may lack the right to a command, and a script that dies between a renaming and what meta says of it loses the
-- slice. So the commands are tried, without effect, before the first of them: deleting no field, renaming to itself.
local function try_renaming(key)
  redis.call('HDEL', KEYS[1], '')
  redis.call('RENAME', key, key)
end
