-- build: rolling, phase rotating: make history_1, whose slice is in the archive, into the next history. The caller
-- reads the closed slices of the window from the archive and writes their OR, a piece at a time; bits are only added
-- that the old history has too, so answers stay what they are.
--
-- KEYS[1] meta
-- KEYS[2] history
-- KEYS[3] history_1
-- KEYS[4] today
--
-- ARGV[1] step: archived (the closed slice is in the archive), piece or finish
-- ARGV[2] uid: of the filter
-- ARGV[3] epoch: that the shard is in
-- ARGV[4] token: of this rotation
-- ARGV[5] number: archived: pieces that need not be written; piece: which; finish: how many there are
-- ARGV[6] oldest: finish: the lowest epoch that the next history holds items of; else 0
-- ARGV[7] offset: piece: in bytes; else 0
-- ARGV[8] data: piece: its bytes; else empty
-- ARGV[9] late: piece: 1 if it was made of the whole old history, because a closed slice is missing; else 0
--
-- Reply: 1.
-- Errors: NOFILTER, MISMATCH, LOST, RESTORING, BADPHASE, BADARG

-- @include "_keys.lua"
-- @include "_fence.lua"
-- @include "_check_slices.lua"
-- @include "_set_oldest.lua"
-- @include "_try_renaming.lua"

local meta_key, history_key, closed_key = KEYS[1], KEYS[2], KEYS[3]
local step, uid, epoch, token, number, oldest, offset, data, late = unpack(ARGV)
local refusal = check_keys({ 'history', 'history_1', 'today' })
if refusal then return refusal end
local meta
refusal, meta = fence(uid, epoch, 'rotating', token)
if refusal then return refusal end

local expected = step == 'archived' and 'nil' or number
if tostring(meta.pieces) ~= expected then
  return redis.error_reply('BADPHASE the next piece is ' .. tostring(meta.pieces))
end
refusal = check_slices(meta.slices)
if refusal then return refusal end

if step == 'archived' then
  redis.call('HSET', meta_key, 'pieces', number)
elseif step == 'piece' then
  if offset + #data > redis.call('STRLEN', closed_key) then
    return redis.error_reply('BADARG the piece ends past the slice')
  end
  redis.call('SETRANGE', closed_key, offset, data)
  if late == '1' then redis.call('HSET', meta_key, 'late', 1) end
  redis.call('HSET', meta_key, 'pieces', number + 1)
elseif step == 'finish' then
  local kept = redis.call('HMGET', meta_key, 'closed', 'late', 'oldest')
  local geometry = string.match(meta.slices, 'today(:%d+:%d+)')
  try_renaming(closed_key)
  redis.call('HSET', meta_key, 'phase', 'idle', 'slices', 'history' .. geometry .. ' today' .. geometry)
  set_oldest(kept[1], tonumber(kept[2] and kept[3] or oldest))
  redis.call('HDEL', meta_key, 'pieces', 'late')
  redis.call('RENAME', closed_key, history_key)
else
  return redis.error_reply('BADARG build takes the steps archived, piece and finish')
end
return 1
