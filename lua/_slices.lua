-- Checks that KEYS has the live slices, from oldest to newest, and that they are whole.
-- Needs: base, phase, listed, FIRST_SLICE. Gives: units (those of the slice of each key).

if phase == 'restoring' then
  return redis.error_reply('RESTORING the filter is being restored from its archive')
end
local units, at = {}, 1
for i = FIRST_SLICE, #KEYS do
  local name, size, bytes, after = string.match(listed, '^([^:]+):(%d+):(%d+) ?()', at)
  if not name or KEYS[i] ~= base .. name then
    at = 0
    break
  end
  local length = call('STRLEN', KEYS[i])
  if length ~= tonumber(bytes) then
    return redis.error_reply('LOST ' .. KEYS[i] .. ' has ' .. length .. ' bytes and should have ' .. bytes)
  end
  units[i], at = tonumber(size), after
end
if at <= #listed then
  local state = call('HMGET', KEYS[1], 'epoch', 'opened')
  return redis.error_reply('STALE epoch ' .. state[1] .. ', opened ' .. state[2] .. ', live slices ' .. listed)
end
