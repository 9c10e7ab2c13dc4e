-- If a script stopped between a change of meta and the renaming of a slice, the slice would be lost. A user may lack
-- the right to a command. So the script tries both commands first, without effect.
local function try_renaming(key)
  redis.call('HDEL', KEYS[1], '')
  redis.call('RENAME', key, key)
end
