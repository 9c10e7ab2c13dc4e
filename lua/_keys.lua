-- Checks that the keys are those of the script's header: meta, and other keys of the same shard. Mixed-up keys would
-- damage the filter for every later call.

-- names: the names of KEYS[2], KEYS[3] and so on.
-- others: a pattern for the names of all further keys; nil if there may be any further keys.
-- Returns a refusal, or nil.
local function check_keys(names, others)
  local base = string.sub(KEYS[1], 1, -1 - #'meta')
  if KEYS[1] ~= base .. 'meta' or #KEYS <= #names then
    return redis.error_reply('BADARG KEYS[1] is meta of a shard, and ' .. table.concat(names, ', ') .. ' follow')
  end
  for i = 1, #names do
    if KEYS[i + 1] ~= base .. names[i] then
      return redis.error_reply('BADARG KEYS[' .. i + 1 .. '] must be ' .. base .. names[i])
    end
  end
  for i = #names + 2, others and #KEYS or 0 do
    if string.sub(KEYS[i], 1, #base) ~= base or not string.find(string.sub(KEYS[i], #base + 1), others) then
      return redis.error_reply('BADARG KEYS[' .. i .. '] is no such key beside ' .. KEYS[1])
    end
  end
end
