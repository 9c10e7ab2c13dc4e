-- A server at maxmemory refuses a script's first write if the command may need memory, and no later write. HDEL of a
-- missing field needs none, so the server accepts it, and then all writes of the script.
local function write_when_full(key)
  redis.call('HDEL', key, '-')
end
