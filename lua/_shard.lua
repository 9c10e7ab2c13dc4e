-- Whether a call may work on this shard.
-- keys: a function that checks the names of keys. identity: check_identity, which checks whose meta it is. meta: reads
-- meta, for the scripts about slices. state: likewise, for the scripts about leases that name no slices.

-- @section keys
-- Checks that the keys are those of the script's header: meta, and other keys of the same shard. Mixed-up keys would
-- damage the filter for every later call.
-- Gives: check_keys.

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

-- @section identity
-- Returns a refusal if meta is missing, of another filter, or of a format that this script does not work on.
local function check_identity(found, format, wanted)
  if not found then
    return redis.error_reply('NOFILTER there is no filter here')
  elseif found ~= wanted then
    return redis.error_reply('MISMATCH the filter was dropped and created anew')
  elseif format ~= '1' then
    return redis.error_reply('FORMAT the shard is of format ' .. (format or 'none')
      .. ', and this release reads format 1: use the release that wrote it')
  end
end
-- @if redisbloom

-- Returns whether a key is a filter of the module that was reserved for so many items, perhaps with more beside it that
-- the module has made since: each for twice as many as the one before, so all are for 1, 3, 7 ... times as many.
-- MEXISTS would answer 0 for a missing key, or one of another type.
local function is_reserved(key, items)
  local found = redis.pcall('BF.INFO', key, 'CAPACITY')
  local absent = found.err and (string.find(found.err, 'not found', 1, true) or string.find(found.err, '^WRONGTYPE'))
  if found.err and not absent then
    redis.call('BF.INFO', key, 'CAPACITY') -- stops with what the server refuses
  end
  local times = found.err and 0 or found[1] / items
  while times > 1 do
    times = (times - 1) / 2
  end
  return times == 1
end

-- Tries a command of the module without effect: BF.MADD on meta, which is no filter, and BF.RESERVE with an error rate
-- of 2. Both are refused, but first for a right or the memory. (With too few arguments they would be refused before.)
-- Returns a refusal, or nil.
local function try_module(command)
  local arguments = command == 'BF.MADD' and { '' } or { 2, 1 }
  local text = redis.pcall(command, KEYS[1], unpack(arguments)).err
  local allowed = string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'error rate', 1, true)
  return not allowed and redis.error_reply(text) or nil
end

local function refusal_of(failure)
  return redis.error_reply('MODULE the Bloom filter of the server refuses: ' .. failure)
end
-- @end if

-- @section meta
-- Reads and checks meta, for the scripts about slices. It is no function: a call of one item would take longer.
-- Needs: call, check_identity, uid, FIRST_SLICE (the number of the first key of a slice).
-- Gives: values (all that was read), phase, listed (the live slices), inserted, changed, longest (the longest lease,
-- ms; false: nobody has claimed), K, policy (retention/write/expire_after), shard_of (shard/shards).

local values = call('HMGET', KEYS[1], 'format', 'fixed', 'phase', 'slices', 'inserted', 'changed', 'claims', 'opened',
  'written', 'period_ms')
local fixed, phase, listed, inserted, changed = values[2], values[3], values[4], values[5], values[6]
local longest = values[7]
local owner, K, policy, shard_of
if values[1] == '1' and fixed then
  owner, K, policy, shard_of = string.match(fixed, '^(%x+) $layout (%d+) (%S+) (%S+) *$')
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

-- @section state
-- Reads and checks meta, for the scripts about leases.
-- Needs: check_identity, uid, refusal (a local).
-- Gives: longest (the longest lease, ms; false: nobody has claimed).

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
