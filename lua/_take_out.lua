-- Takes entries out of leases and hands.
-- Needs: call, LEASES, HANDS, entries.

local SHORT = 12 -- bytes of an entry whose item and payload stand in a field of their own: holder, failures, lapses

-- A user may lack the right to a command: so both are tried before the first write of a call.
local function try_taking()
  call('HDEL', LEASES, '')
  call('ZREM', HANDS, '')
end

local function take_out(digest, entry)
  if #entry == SHORT then call('HDEL', LEASES, digest, digest .. '+') else call('HDEL', LEASES, digest) end
  call('ZREM', HANDS, string.sub(entry, 1, 8) .. digest)
  entries[digest] = nil
end
