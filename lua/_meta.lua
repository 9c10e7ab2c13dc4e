-- Reads and checks meta, for the scripts about slices. It is no function: a call of one item would take longer.
-- Needs: check_identity, uid, FIRST_SLICE (the number of the first key of a slice).
-- Gives: format, fixed, phase, listed (the live slices), inserted, changed, K, habits (retention/write/expire_after), place
-- (shard/shards).

local values = call('HMGET', KEYS[1], 'format', 'fixed', 'phase', 'slices', 'inserted', 'changed')
local fixed, phase, listed, inserted, changed = values[2], values[3], values[4], values[5], values[6]
local owner, K, habits, place
local format = values[1]
if (format == '2' or format == '3') and fixed then
  owner, K, habits, place = string.match(fixed, '^(%x+) $layout (%d+) (%S+) (%S+)$')
end
if owner ~= uid or ('$k' ~= '' and K ~= '$k') then
  -- Meta of format 1, or a refusal. (Format 1 has a field for each value of fixed.)
  local found = call('HMGET', KEYS[1], 'uid', 'format', 'layout', 'k', 'shard', 'shards', 'retention', 'write',
    'expire_after')
  if not found[1] then
    for i = FIRST_SLICE, #KEYS do
      if call('EXISTS', KEYS[i]) == 1 then
        return redis.error_reply('LOST meta is missing beside ' .. KEYS[i])
      end
    end
  end
  local refused = check_identity(found[1], found[2], uid)
  if refused then
    return refused
  elseif found[2] ~= '1' and not string.find(fixed or '', '^%x+ %a+ %d+ ') then
    return redis.error_reply('LOST meta is damaged: fixed is missing or cannot be read')
  elseif found[2] ~= '1' or found[3] ~= '$layout' or ('$k' ~= '' and found[4] ~= '$k') then
    local made = found[2] ~= '1' and string.match(fixed, '^%x+ (%a+ %d+)') or found[3] .. ' ' .. found[4]
    return redis.error_reply('BADARG this script is for another layout than ' .. made)
  end
  K, place = found[4], found[5] .. '/' .. found[6]
  habits = table.concat({ found[7], found[8] or '-', found[9] or '-' }, '/')
  changed = true -- unknown: a restore of format 1 did not note it
end
if phase == 'dropping' then
  return redis.error_reply('NOFILTER the filter is being dropped')
end
