-- merge: OR bitmaps of another filter into the live slices of this one, for a union. Both filters have the same
-- geometry, hash and seed. OR may be repeated, so a union that died half-way is begun anew.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
-- KEYS[3] merging 1: a string that exists only while the script runs
-- KEYS[4] merging 2: another such string
-- KEYS[5…] slices: the live slices, from oldest to newest
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
-- Errors: NOFILTER, MISMATCH, LOST, STALE, RESTORING, BADPHASE, BADARG

-- @include "_keys.lua"
-- @include "_filter.lua"
-- @include "_$layout.lua"
-- @include "_has_$layout.lua"
-- @include "_age.lua"
-- @include "_now.lua"
-- @include "_changed.lua"
-- @include "_forgotten.lua"

local FIRST_SLICE = 5

local forgotten_key, merging_1, merging_2 = KEYS[2], KEYS[3], KEYS[4]
local uid, step, which, number, data = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local meta
local refusal = check_keys({ 'forgotten', 'merging_1', 'merging_2' })
if refusal then return refusal end
meta, refusal = read_meta(uid, FIRST_SLICE)
if not meta then return refusal end
if meta.epoch ~= ARGV[6] or meta.phase == 'rotating' then
  return redis.error_reply('BADPHASE the shard is in epoch ' .. meta.epoch .. ', ' .. meta.phase)
end
local slices
slices, refusal = live_slices(meta, FIRST_SLICE)
if not slices then return refusal end
local slice = slices[which]

if step == 'forget' then
  local tested, added = tested_slices(meta, slices, 0), 0
  for at = 1, #data - 15, 16 do
    local digest = string.sub(data, at, at + 15)
    if age_in(tested, struct.unpack('<I4I4I4I4', digest)) == 0 or redis.call('ZSCORE', forgotten_key, digest) then
      added = added + redis.call('ZADD', forgotten_key, forgotten_score(meta.epoch), digest)
    end
  end
  if added > 0 then note_change() end
  return added
elseif step == 'piece' and slice and number + #data <= slice.bytes then
  redis.call('SET', merging_1, redis.call('GETRANGE', slice.key, number, number + #data - 1))
  redis.call('SET', merging_2, data)
  local before = redis.call('BITCOUNT', merging_1)
  redis.call('BITOP', 'OR', merging_1, merging_1, merging_2)
  local added = redis.call('BITCOUNT', merging_1) - before
  if added > 0 then
    note_change()
    redis.call('SETRANGE', slice.key, number, redis.call('GET', merging_1))
  end
  redis.call('DEL', merging_1, merging_2)
  return added
elseif step == 'count' and slice == slices[#slices] then
  redis.call('HSET', KEYS[1], 'inserted', math.max(meta.inserted, number))
  return 1
elseif step == 'count' and slice then
  local at = 0
  local closed = string.gsub(redis.call('HGET', KEYS[1], 'closed') or '', '(%S+:)(%d+)', function(head, count)
    at = at + 1
    return at == which and head .. math.max(count, number) or nil
  end)
  redis.call('HSET', KEYS[1], 'closed', closed)
  return 1
end
return redis.error_reply('BADARG merge takes forget, piece within a slice, and count')
