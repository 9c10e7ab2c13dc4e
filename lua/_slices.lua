-- Whether the live slices are whole.
-- live: for scripts that name all of them as keys. lengths: a function for the others, check_slices.

-- @section live
-- Checks that KEYS has the live slices, from oldest to newest, and that they are whole; and that the script is made for
-- a shard with claims if the shard has them. (The scripts claim and commit are made for every shard.)
-- Needs: call, base, phase, listed, FIRST_SLICE, longest, CLAIMS (1: for shards with claims, 0: without, 2: for both).
-- Gives: units (the number of a key -> the units of its slice: blocks, bits or counters).

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
-- @if no redisbloom
  local length = call('STRLEN', KEYS[i])
  if length ~= tonumber(bytes) then
    return redis.error_reply('LOST ' .. KEYS[i] .. ' has ' .. length .. ' bytes and should have ' .. bytes)
  end
-- @end if
-- @if redisbloom
  if not is_reserved(KEYS[i], tonumber(size)) then
    return redis.error_reply('LOST ' .. KEYS[i] .. ' is missing, or is no Bloom filter for ' .. size .. ' items')
  end
-- @end if
  units[i], at = tonumber(size), after
end
if at <= #listed or (CLAIMS ~= 2 and (longest ~= false) ~= (CLAIMS == 1)) then
  local state = call('HMGET', KEYS[1], 'epoch', 'opened')
  local claims = longest and math.max(tonumber(longest) or 1, 1) or 0 -- with claims never 0, even if edited by hand
  return redis.error_reply('STALE epoch ' .. state[1] .. ', opened ' .. state[2] .. ', claims ' .. claims
    .. ', live slices ' .. listed)
end

-- @section lengths
-- Returns a refusal if a live slice is missing, or its length is not as in meta.
local function check_slices(slices)
  local base = string.sub(KEYS[1], 1, -1 - #'meta')
-- @if no redisbloom
  for name, _, bytes in string.gmatch(slices, '(%S+):(%d+):(%d+)') do
    if redis.call('STRLEN', base .. name) ~= tonumber(bytes) then
      return redis.error_reply('LOST ' .. base .. name .. ' is missing or has another length')
    end
  end
-- @end if
-- @if redisbloom
  for name, items in string.gmatch(slices, '(%S+):(%d+):%d+') do
    if not is_reserved(base .. name, tonumber(items)) then
      local what = ' is missing, or is no Bloom filter for ' .. items .. ' items'
      return redis.error_reply('LOST ' .. base .. name .. what)
    end
  end
-- @end if
end
