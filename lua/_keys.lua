-- Whether the keys are those that the header lists: meta, and beside it keys under their own names. A caller that
-- mixes keys up would have one written as another, and every later call would fail.

-- names: of KEYS[2], KEYS[3] and so on; others: a pattern that the names of all further keys match, if any is wanted.
-- Returns the refusal, if any.
local function check_keys(names, others)
  local base = string.sub(KEYS[1], 1, -1 - #'meta')
  if KEYS[1] ~= base .. 'meta' or #KEYS <= #names then
    return redis.error_reply('BADARG KEYS[1] is meta of a shard, and ' .. table.concat(names, ', ') .. ' follow')
  end
  for i = 1, #names do
    if KEYS[i + 1] ~= base .. names[i] then
      return redis.error_reply('BADARG KEYS[' .. i + 1 .. '] is to be ' .. base .. names[i])
    end
  end
  for i = #names + 2, others and #KEYS or 0 do
    if string.sub(KEYS[i], 1, #base) ~= base or not string.find(string.sub(KEYS[i], #base + 1), others) then
      return redis.error_reply('BADARG KEYS[' .. i .. '] is no such key beside ' .. KEYS[1])
    end
  end
end
