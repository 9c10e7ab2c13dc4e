-- The holders of items. Every call of a holder is a beat: it lives for a lease more.
-- read: reads the holder and the lease of a call. beat: functions that note the beat. far: a function for holders that
-- live too long. tidy: removes dead holders.

-- @section read
-- Reads the holder and the lease of a call.
-- Needs: HOLDER: ARGV[HOLDER] is the holder (16 hex digits, or - for none), ARGV[HOLDER + 1] the lease (ms).
-- Gives: own (the holder's 8 bytes; nil: none), lease, from_hex, last_of (the end of the range of a holder in
-- IN_FLIGHT), MOST_DELAY, LEASE_OF_MANY.

local MOST_LEASE, MOST_DELAY = 60 * 60 * 1000, 7 * 24 * 60 * 60 * 1000 -- ms, of a lease and of a release
local LEASE_OF_MANY = 10 * 60 * 1000 -- ms, the longest default lease: meta tells of longer ones
local own, lease

local function from_hex(text)
  return (string.gsub(text, '%x%x', function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

local function last_of(holder)
  return '(' .. holder .. string.rep('\255', 17)
end

if ARGV[HOLDER] ~= '-' then
  lease = tonumber(ARGV[HOLDER + 1])
  if not string.find(ARGV[HOLDER] or '', '^' .. string.rep('%x', 16) .. '$')
    or string.sub(ARGV[HOLDER], 1, 2) == '00' then
    return redis.error_reply('BADARG a holder is 16 hex digits that do not begin with 00')
  elseif not lease or lease < 1 or lease > MOST_LEASE or lease % 1 ~= 0 then
    return redis.error_reply('BADARG a lease is 1 to ' .. MOST_LEASE .. ' ms')
  end
  own = from_hex(ARGV[HOLDER])
end

-- @section beat
-- At a beat a holder that has anything in flight here lives for a lease from now; any other is removed. The beat is the
-- last write of a call.
-- Needs: call, IN_FLIGHT, HOLDERS, and what read gives.
-- Gives: time_ms, has_in_flight, try_beating, beat.

local function time_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function has_in_flight(holder)
  return #call('ZRANGEBYLEX', IN_FLIGHT, '[' .. holder, last_of(holder), 'LIMIT', 0, 1) > 0
end

-- A user may lack the right to a command: so all commands of a beat are tried before the first write of a call. ZADD
-- comes first, because a server at maxmemory refuses it.
local function try_beating()
  call('ZADD', HOLDERS, 'XX', 0, '')
  call('ZREM', HOLDERS, '')
  call('ZRANGEBYLEX', IN_FLIGHT, '-', '-')
end

-- now: ms. has_some: whether it certainly has something in flight here.
local function beat(now, has_some)
  if not has_some and not has_in_flight(own) then
    call('ZREM', HOLDERS, own)
    return
  end
  -- A holder that lives for longer than the longest lease in meta would be taken for one of a clock that was set back.
  if lease > LEASE_OF_MANY and lease > tonumber(call('HGET', KEYS[1], 'claims') or 0) then
    call('HSET', KEYS[1], 'claims', lease)
  end
  call('ZADD', HOLDERS, string.format('%.0f', now + lease), own)
end

-- @section far
-- A holder may live until a time that lies too far ahead, because this server's clock was set back. Then it lives for
-- the longest lease from now, and a delay holder for the longest delay: an item must not be withheld for longer. Delay
-- holders may be many, and live longer than holders should. So some holders are found in IN_FLIGHT, from a random one
-- on.
-- Needs: call, MOST_DELAY (delay holders live as long as an item was released for), LEASE_OF_MANY, IN_FLIGHT, HOLDERS,
-- last_of.
-- Gives: mend_far.

local HOLDERS_A_CALL = 8

local function mend_far(now, longest)
  local last = now + math.max(tonumber(longest or 0), LEASE_OF_MANY)
  local latest = call('ZREVRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  if not latest[2] or tonumber(latest[2]) <= last then return end
  local last_delay = string.format('%.0f', now + MOST_DELAY)
  for _, holder in ipairs(call('ZRANGEBYSCORE', HOLDERS, '(' .. last_delay, '+inf', 'LIMIT', 0, 100)) do
    call('ZADD', HOLDERS, last_delay, holder)
  end
  local from = '[' .. string.char(1 + call('TIME')[2] % 255)
  for _ = 1, HOLDERS_A_CALL do
    local member = call('ZRANGEBYLEX', IN_FLIGHT, from, '+', 'LIMIT', 0, 1)[1]
    local holder = member and string.sub(member, 1, 8)
    if holder and tonumber(call('ZSCORE', HOLDERS, holder) or 0) > last then
      call('ZADD', HOLDERS, string.format('%.0f', last), holder)
    end
    from = holder and last_of(holder) or '[\1'
  end
end

-- @section tidy
-- Others may take or commit all that a dead holder has. Such holders would pile up where nobody reclaims. So a call
-- that adds a holder looks at two random ones first, and removes those that are dead and have nothing in flight.
-- Needs: call, adds_holder, clock (ms), own, has_in_flight, HOLDERS.

for _, other in ipairs(adds_holder and call('ZRANDMEMBER', HOLDERS, 2) or {}) do
  if other ~= own and tonumber(call('ZSCORE', HOLDERS, other)) <= clock and not has_in_flight(other) then
    call('ZREM', HOLDERS, other)
  end
end
