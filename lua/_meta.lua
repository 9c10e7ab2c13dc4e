-- Reads and checks meta, for the scripts about slices. It is no function: a call of one item would take longer.
-- Needs: check_identity, uid, FIRST_SLICE (the number of the first key of a slice).
-- Gives: values (for _missed), phase, listed (the live slices), inserted, changed, longest (the longest lease, ms; false: nobody has claimed),
-- K, habits (retention/write/expire_after), place (shard/shards).

local values = call('HMGET', KEYS[1], 'format', 'fixed', 'phase', 'slices', 'inserted', 'changed', 'claims', 'opened',
  'written', 'period_ms')
local fixed, phase, listed, inserted, changed = values[2], values[3], values[4], values[5], values[6]
local longest = values[7]
local owner, K, habits, place
if values[1] == '1' and fixed then
  owner, K, habits, place = string.match(fixed, '^(%x+) $layout (%d+) (%S+) (%S+)$')
end
if owner ~= uid or ('$k' ~= '' and K ~= '$k') then
  local found = call('HGET', KEYS[1], 'uid')
  if not found then
    for i = FIRST_SLICE, #KEYS do
      if call('EXISTS', KEYS[i]) == 1 then
        return redis.error_reply('LOST meta is missing beside ' .. KEYS[i])
      end
    end
  end
  local refused = check_identity(found, values[1], uid)
  if refused then
    return refused
  elseif not string.find(fixed or '', '^%x+ %a+ %d+ ') then
    return redis.error_reply('LOST meta is damaged: fixed is missing or cannot be read')
  end
  return redis.error_reply('BADARG this script is for another layout than ' .. string.match(fixed, '^%x+ (%a+ %d+)'))
end
if phase == 'dropping' then
  return redis.error_reply('NOFILTER the filter is being dropped')
end
