-- Reads the state of the shard, for the scripts about leases that name no slices.
-- Needs: check_identity, uid. Gives: longest (the longest lease, ms; false: nobody has claimed).

local state = redis.call('HMGET', KEYS[1], 'uid', 'format', 'phase', 'claims')
local longest = state[4]
refusal = check_identity(state[1], state[2], uid)
if refusal then
  return refusal
elseif state[3] == 'dropping' then
  return redis.error_reply('NOFILTER the filter is being dropped')
elseif state[3] == 'restoring' then
  return redis.error_reply('RESTORING the filter is being restored from its archive')
end
