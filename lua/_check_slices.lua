-- Returns a refusal if a live slice is missing, or its length is not as in meta.
local function check_slices(slices)
  local base = string.sub(KEYS[1], 1, -1 - #'meta')
  for name, _, bytes in string.gmatch(slices, '(%S+):(%d+):(%d+)') do
    if redis.call('STRLEN', base .. name) ~= tonumber(bytes) then
      return redis.error_reply('LOST ' .. base .. name .. ' is missing or has another length')
    end
  end
end
