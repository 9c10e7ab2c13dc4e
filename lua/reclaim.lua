-- reclaim: claim what dead holders had, and what was given back and is due again.
-- The slices are not asked: an item that was claimed and not committed is to be fetched, even if it is in them by
-- chance.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] leases
-- KEYS[4] in_flight
-- KEYS[5] holders
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; + behind it: the caller sends WAIT), or - for none
-- ARGV[3] holder: 16 hex digits that do not begin with 00
-- ARGV[4] lease: the ms for which the holder lives without another call; at most 3600000
-- ARGV[5] limit: the most items, 1 to 100
--
-- Reply: an array of four values an item: digest (16 bytes), failures, lapses, and what is kept of it (item and
--   payload). At most 256 KiB of what is kept, or one item.
-- Errors: NOFILTER, MISMATCH, FORMAT, RESTORING, OLDCALL, LATECALL, BADARG

-- @include "_shard.lua" keys identity

local call = redis.call
local uid, HOLDER, INSERTS, limit = ARGV[1], 3, false, tonumber(ARGV[5])
local LEASES, IN_FLIGHT, HOLDERS = KEYS[3], KEYS[4], KEYS[5]
local MOST_BYTES, HOLDERS_AT_A_TIME, MOST_HOLDERS = 256 * 1024, 100, 1000
local SHORT = 12 -- bytes of an entry whose item and payload stand in a field of their own: holder, failures, lapses
local refusal = check_keys({ 'replies', 'leases', 'in_flight', 'holders' }, '^$')
if refusal then return refusal end

-- @include "_holder.lua" read beat far
-- @include "_try.lua" when_full

if not own or not limit or limit < 1 or limit > 100 or limit % 1 ~= 0 then
  return redis.error_reply('BADARG reclaim takes a holder, a lease and a limit of 1 to 100')
end

-- @include "_shard.lua" state

local reply, bytes = {}, 0
-- Adds an entry to the reply; returns false if that would make it too long.
local function add(digest, entry, failures, lapses)
  local kept = #entry > SHORT and string.sub(entry, SHORT + 1) or call('HGET', LEASES, digest .. '+') or ''
  if #reply > 0 and bytes + #kept > MOST_BYTES then return false end
  bytes = bytes + #kept
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3], reply[#reply + 4] = digest, failures, lapses, kept
  return true
end

-- Of a repeated reclaim those items come again that the holder still has in flight.
local function repeated(digests)
  for first = 1, #digests, 16 do
    local digest = string.sub(digests, first, first + 15)
    local entry = call('HGET', LEASES, digest)
    if entry and string.sub(entry, 1, 8) == own then add(digest, entry, struct.unpack('<I2I2', entry, 9)) end
  end
  write_when_full(KEYS[1])
  beat(time_ms())
  return reply
end

local packed, count, SCOPE = '', 0, table.concat({ ARGV[3], ARGV[4] }, ' ')

-- @include "_call.lua" id

local clock, old, fields, members = time_ms(), {}, {}, {}
-- Takes over what one dead holder has; returns whether that was all.
local function take_over(holder)
  local wanted = limit - #fields / 2
  local some, digests = call('ZRANGEBYLEX', IN_FLIGHT, '[' .. holder, last_of(holder), 'LIMIT', 0, wanted), {}
  for i, member in ipairs(some) do
    digests[i] = string.sub(member, 9)
  end
  for i, entry in ipairs(#some > 0 and call('HMGET', LEASES, unpack(digests)) or {}) do
    if entry and string.sub(entry, 1, 8) == holder then
      local failures, lapses, after = struct.unpack('<I2I2', entry, 9)
      if string.byte(entry) ~= 0 and lapses < 65535 then lapses = lapses + 1 end -- a delay holder does not die
      if not add(digests[i], entry, failures, lapses) then return false end
      fields[#fields + 1] = digests[i]
      fields[#fields + 1] = own .. struct.pack('<I2I2', failures, lapses) .. string.sub(entry, after)
      members[#members + 1], members[#members + 2] = 0, own .. digests[i]
    end
    old[#old + 1] = some[i]
  end
  return #some < wanted
end

-- Holders that have nothing (others have claimed it) are quickly passed over.
local gone, passed = {}, 0
repeat
  local dead, going_on = call('ZRANGEBYSCORE', HOLDERS, '-inf', clock, 'LIMIT', passed, HOLDERS_AT_A_TIME), true
  for _, holder in ipairs(dead) do
    going_on = going_on and (holder == own or take_over(holder))
    if going_on and holder ~= own then gone[#gone + 1] = holder end
  end
  passed = passed + #dead
until not going_on or #dead < HOLDERS_AT_A_TIME or passed >= MOST_HOLDERS

-- A user may lack the right to a command: so all are tried before the first write.
try_beating()
mend_far(clock, longest)

remove_old_records()

if #fields > 0 then
  call('HSET', KEYS[1], 'claimed', string.format('%.0f', (call('HGET', KEYS[1], 'claimed') or 0) + #fields / 2))
end
if #old > 0 then call('ZREM', IN_FLIGHT, unpack(old)) end
if #fields > 0 then
  call('HSET', LEASES, unpack(fields))
  call('ZADD', IN_FLIGHT, unpack(members))
end
if #gone > 0 then call('ZREM', HOLDERS, unpack(gone)) end
local taken = {}
for i = 1, #reply, 4 do
  taken[#taken + 1] = reply[i]
end
local answers = table.concat(taken)

-- @include "_call.lua" record

beat(clock, #fields > 0)
return reply
