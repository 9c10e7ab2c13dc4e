-- At maxmemory a server refuses a script's first write if that may need memory. Removing a field that is not there
-- needs none; once a script has written, everything gets through.
local function write_when_full(key)
  redis.call('HDEL', key, '-')
end
