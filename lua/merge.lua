-- merge: OR bitmaps of another filter into the live slices of this one, for a union.
-- Both filters have the same geometry, hash and seed. OR may be repeated, so a union that died half-way is begun anew.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
-- KEYS[3] merging 1: a string that exists only while the script runs
-- KEYS[4] merging 2: another such string
-- KEYS[5…] slices: of the live slices, from oldest to newest, the segments that the data belongs to: piece and count,
--   one of each slice
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] step: forget (the other filter's forgotten items: they stay new unless this filter has seen them), piece or
--   count
-- ARGV[3] slice: piece, count: the number of the live slice, the oldest being 1; else 0
-- ARGV[4] number: piece: its offset in bytes; count: the least number of items that the slice has; else 0
-- ARGV[5] data: forget: digests of 16 bytes, packed; piece: its bytes; else empty
-- ARGV[6] epoch: the shard's epoch for the caller; in another epoch, or during a rotation, the slices are others
--
-- Reply: piece: how many bits were set that were not before; forget: how many digests were added; count: 1.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, RESTORING, BADPHASE, BADARG

-- @include "_shard.lua" keys

local call = redis.call
local uid, base, FIRST_SLICE, CLAIMS = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), 5, 2
local step, which, number, data, max_age = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], 0
local packed = step == 'forget' and data or ''
local refusal = check_keys({ 'forgotten', 'merging_1', 'merging_2' })
if refusal then return refusal end

-- @include "_shard.lua" identity meta

local shard_epoch = call('HGET', KEYS[1], 'epoch')
if shard_epoch ~= ARGV[6] or phase == 'rotating' then
  return redis.error_reply('BADPHASE the shard is in epoch ' .. shard_epoch .. ', ' .. phase)
end

-- @include "_slices.lua" live
-- @include "_items.lua" shard
-- @include "_$layout.lua" common has

local age_in, oldest_age

-- @include "_age.lua" age
-- @include "_time.lua" now changed forgotten written

local forgotten_key, merging_1, merging_2 = KEYS[2], KEYS[3], KEYS[4]
local slice = which > 0 and KEYS[FIRST_SLICE - 1 + which] or nil
if which > 0 and LAST_SLICE < #KEYS then return redis.error_reply('BADARG a piece is of one segment') end

if step == 'forget' then
  local added = 0
  for first = 1, #data - 15, 16 do
    local digest = string.sub(data, first, first + 15)
    if age_in(struct.unpack('<I4I4I4I4', digest)) == 0 or call('ZSCORE', forgotten_key, digest) then
      added = added + call('ZADD', forgotten_key, forgotten_score(shard_epoch), digest)
    end
  end
  if added > 0 then note_change() end
  return added
elseif step == 'piece' and slice and number + #data <= call('STRLEN', slice) then
  call('SET', merging_1, call('GETRANGE', slice, number, number + #data - 1))
  call('SET', merging_2, data)
  local before = call('BITCOUNT', merging_1)
  call('BITOP', 'OR', merging_1, merging_1, merging_2)
  local added = call('BITCOUNT', merging_1) - before
  if added > 0 then
    note_change()
    if string.find(policy, '^r') then -- ring, rolling
      call('HSET', KEYS[1], 'written', time_written(call('HGET', KEYS[1], 'written')))
    end
    call('SETRANGE', slice, number, call('GET', merging_1))
  end
  call('DEL', merging_1, merging_2)
  return added
elseif step == 'count' and slice and FIRST_SLICE - 1 + which == LAST_SLICE then
  local new = call('HGET', KEYS[1], 'new')
  if new then call('HSET', KEYS[1], 'new', new + math.max(0, number - inserted)) end
  call('HSET', KEYS[1], 'inserted', math.max(inserted, number))
  return 1
elseif step == 'count' and slice then
  local entry = 0
  local closed = string.gsub(
    call('HGET', KEYS[1], 'closed') or '',
    '(%d+:%d+:%d+:)(%d+)(:?)(%d*)',
    function(head, count, colon, new)
      entry = entry + 1
      if entry ~= which then return end
      local more = math.max(0, number - count)
      return head .. count + more .. colon .. (new ~= '' and new + more or '')
    end
  )
  call('HSET', KEYS[1], 'closed', closed)
  return 1
end
return redis.error_reply('BADARG merge takes forget, piece within a slice, and count')
