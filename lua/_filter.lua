-- Reads and checks meta and the live slices. Every refusal about them comes before the first write.

local function read_meta(uid, first_slice)
  local values = redis.call('HMGET', KEYS[1], 'uid', 'layout', 'k', 'shard', 'shards', 'phase', 'epoch', 'slices',
    'retention', 'write', 'expire_after', 'inserted', 'limit')
  local meta = {
    uid = values[1], layout = values[2], k = values[3], shard = tonumber(values[4]), shards = tonumber(values[5]),
    phase = values[6], epoch = values[7], slices = values[8], retention = values[9], write = values[10],
    expire_after = values[11], inserted = tonumber(values[12]), limit = tonumber(values[13] or nil),
  }
  if not meta.uid then
    for i = first_slice, #KEYS do
      if redis.call('EXISTS', KEYS[i]) == 1 then
        return nil, redis.error_reply('LOST meta is missing beside ' .. KEYS[i])
      end
    end
    return nil, redis.error_reply('NOFILTER there is no filter here')
  end
  if meta.uid ~= uid then
    return nil, redis.error_reply('MISMATCH the filter was dropped and created anew')
  end
  if meta.layout ~= '$layout' or ('$k' ~= '' and meta.k ~= '$k') then
    return nil, redis.error_reply('BADARG this script is for another layout than ' .. meta.layout .. ', k ' .. meta.k)
  end
  if meta.phase == 'dropping' then
    return nil, redis.error_reply('NOFILTER the filter is being dropped')
  end
  return meta
end

-- Returns the refusal of an old list of slices. Its text has all that the caller needs, so that it reads nothing.
local function stale(meta)
  local opened = redis.call('HGET', KEYS[1], 'opened') or 0
  return redis.error_reply('STALE epoch ' .. meta.epoch .. ', opened ' .. opened .. ', live slices ' .. meta.slices)
end

-- Returns the live slices from oldest to newest, each {key, units, bytes, k}; or nil and a refusal.
local function live_slices(meta, first_slice)
  if meta.phase == 'restoring' then
    return nil, redis.error_reply('RESTORING the filter is being restored from its archive')
  end
  local base = string.sub(KEYS[1], 1, -1 - #'meta')
  local slices = {}
  for name, units, bytes in string.gmatch(meta.slices, '(%S+):(%d+):(%d+)') do
    slices[#slices + 1] = { key = base .. name, units = tonumber(units), bytes = tonumber(bytes), k = tonumber(meta.k) }
  end
  if #slices ~= #KEYS - first_slice + 1 then
    return nil, stale(meta)
  end
  for i, slice in ipairs(slices) do
    if slice.key ~= KEYS[first_slice + i - 1] then
      return nil, stale(meta)
    end
  end
  for _, slice in ipairs(slices) do
    local bytes = redis.call('STRLEN', slice.key)
    if bytes ~= slice.bytes then
      return nil, redis.error_reply('LOST ' .. slice.key .. ' has ' .. bytes .. ' bytes and should have ' .. slice.bytes)
    end
  end
  return slices
end

-- Returns the slices in which an item is tested, newest first, each with the age of its items. In a ring with write=all
-- the max_age-th newest slice has every item of the last max_age periods. So only that one is tested; its age is 1.
local function tested_slices(meta, slices, max_age)
  local oldest = (max_age == 0 or max_age > #slices) and 1 or #slices - max_age + 1
  if meta.write == 'all' then
    slices[oldest].age = 1
    return { slices[oldest] }
  end
  local tested = {}
  for i = #slices, oldest, -1 do
    local age = #tested + 1
    slices[i].age = meta.retention == 'rolling' and math.min(age, 2) or age
    tested[age] = slices[i]
  end
  return tested
end
