-- The items of a call that are in flight.
-- entries: reads their entries in leases. take_out: functions that take entries out.

-- @section entries
-- Somebody has an item in flight, or it has lapsed because its holder is dead. The entries are looked at before the
-- slices.
-- Needs: call, packed, count, LEASES, HOLDERS.
-- Gives: any_leases (whether anything is in flight in the shard), entries (digest -> entry), is_in_flight, clock (ms;
-- nil without leases), living (holder -> whether it lives).

local entries, living, clock = {}, {}, nil
local any_leases = call('EXISTS', LEASES) == 1
if any_leases then
  local time = call('TIME')
  clock = time[1] * 1000 + math.floor(time[2] / 1000)
  local digests = {}
  for i = 1, count do
    digests[i] = string.sub(packed, i * 16 - 15, i * 16)
  end
  for i, entry in ipairs(call('HMGET', LEASES, unpack(digests))) do
    entries[digests[i]] = entry
  end
end

local function is_in_flight(entry)
  local holder = string.sub(entry, 1, 8)
  if living[holder] == nil then
    local till = call('ZSCORE', HOLDERS, holder)
    living[holder] = till and tonumber(till) > clock or false
  end
  return living[holder]
end

-- @section take_out
-- Takes entries out of leases and in_flight.
-- Needs: call, LEASES, IN_FLIGHT, entries.
-- Gives: try_taking, take_out.

local SHORT = 12 -- bytes of an entry whose item and payload stand in a field of their own: holder, failures, lapses

-- A user may lack the right to a command: so both are tried before the first write of a call.
local function try_taking()
  call('HDEL', LEASES, '')
  call('ZREM', IN_FLIGHT, '')
end

local function take_out(digest, entry)
  if #entry == SHORT then call('HDEL', LEASES, digest, digest .. '+') else call('HDEL', LEASES, digest) end
  call('ZREM', IN_FLIGHT, string.sub(entry, 1, 8) .. digest)
  entries[digest] = nil
end
