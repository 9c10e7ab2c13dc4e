-- Writes without effect, which come before the first real one of a script. Each section makes a function.
-- when_full: write_when_full. renaming: try_renaming.

-- @section when_full
-- A server at maxmemory refuses a script's first write if the command may need memory, and no later write. HDEL of a
-- missing field needs none, so the server accepts it, and then all writes of the script.
local function write_when_full(key)
  redis.call('HDEL', key, '-')
end

-- @section renaming
-- If a script stopped between a change of meta and the renaming of a slice, the slice would be lost. A user may lack
-- the right to a command. So the script tries both commands first, without effect.
local function try_renaming(key)
  redis.call('HDEL', KEYS[1], '')
  redis.call('RENAME', key, key)
end
