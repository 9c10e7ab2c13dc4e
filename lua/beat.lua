-- beat: note a sign of life of a holder: what it has in flight stays so for a lease more.
--
-- KEYS[1] meta
-- KEYS[2] in_flight
-- KEYS[3] holders
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] holder: 16 hex digits that do not begin with 00
-- ARGV[3] lease: the ms for which the holder lives without another call; at most 3600000
--
-- Reply: how many items the holder has in flight in this shard. With none it is no holder any more.
-- Errors: NOFILTER, MISMATCH, FORMAT, RESTORING, BADARG

-- @include "_shard.lua" keys identity

local uid, IN_FLIGHT, HOLDERS, HOLDER = ARGV[1], KEYS[2], KEYS[3], 2
local refusal = check_keys({ 'in_flight', 'holders' }, '^$')
if refusal then return refusal end
local call = redis.call

-- @include "_holder.lua" read beat far
-- @include "_try.lua" when_full

if not own then return redis.error_reply('BADARG beat takes a holder and its lease') end

-- @include "_shard.lua" state

local count, now = call('ZLEXCOUNT', IN_FLIGHT, '[' .. own, last_of(own)), time_ms()
write_when_full(KEYS[1])
mend_far(now, longest)
beat(now, count > 0)
return count
