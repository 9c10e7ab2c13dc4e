-- build: make history_1 into the next history: rolling, phase rotating, once the closed slice is in the archive.
-- The caller reads the closed slices of the window from the archive and writes their OR, piece by piece. The old
-- history has all bits that are added, so answers do not change.
--
-- KEYS[1] meta
-- KEYS[2] history
-- KEYS[3] history_1
-- KEYS[4] today
--
-- ARGV[1] step: archived (notes that the closed slice is in the archive), piece, finish, or halted (notes that the
--   archive failed: rotate goes on with this turn)
-- ARGV[2] uid: the filter's uid
-- ARGV[3] epoch: the shard's present epoch
-- ARGV[4] token: the token of this rotation
-- ARGV[5] number: archived: how many pieces need no build; piece: the piece's number, from 0; finish: the number of
--   pieces; halted: 0
-- ARGV[6] oldest: finish: the lowest epoch whose items are in the next history; else 0
-- ARGV[7] offset: piece: its offset in bytes; else 0
-- ARGV[8] data: piece: its bytes; finish: with last-seen, how many items the next history has; else empty
-- ARGV[9] late: piece: 1 if it has the whole old history in it, because a closed slice is missing; else 0
--
-- Reply: 1.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, RESTORING, BADPHASE, BADARG

-- @include "_shard.lua" keys identity
-- @include "_rotation.lua" fence
-- @include "_slices.lua" lengths
-- @include "_rotation.lua" oldest
-- @include "_try.lua" renaming when_full

local meta_key, history_key, closed_key = KEYS[1], KEYS[2], KEYS[3]
local step, uid, epoch, token, number, oldest, offset, data, late = unpack(ARGV)
local refusal = check_keys({ 'history', 'history_1', 'today' })
if refusal then return refusal end
local meta
refusal, meta = fence(uid, epoch, 'rotating', token)
if refusal then return refusal end

if step == 'halted' then
  write_when_full(meta_key)
  redis.call('HSET', meta_key, 'halted', 1)
  return 1
end
local expected -- archived comes before any piece, each piece in its turn, and finish after the last
if step == 'archived' then
  expected = not meta.pieces
else
  expected = meta.pieces and meta.pieces == tonumber(number)
end
if not expected then
  return redis.error_reply('BADPHASE the number of pieces built is ' .. (meta.pieces or 'not known yet'))
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
  local closed, was_late, last_oldest = unpack(redis.call('HMGET', meta_key, 'closed', 'late', 'oldest'))
  if was_late then oldest = last_oldest or oldest end -- the items of the old history are still there
  if data ~= '' then closed = string.gsub(string.gsub(closed, '(%S+:)%d+', '%10'), '%d+$', data) end
  local geometry = string.match(meta.slices, 'today(:%d+:%d+:%d+)')
  local history = string.find(meta.slices, 'history_1', 1, true) -- if not, all had expired when the shard turned
  if history then try_renaming(closed_key) end
  redis.call('HSET', meta_key, 'phase', 'idle',
    'slices', (history and 'history' .. geometry .. ' ' or '') .. 'today' .. geometry)
  set_oldest(closed, tonumber(oldest))
  redis.call('HDEL', meta_key, 'pieces', 'late', 'halted')
  if history then redis.call('RENAME', closed_key, history_key) end
else
  return redis.error_reply('BADARG build takes the steps archived, piece, finish and halted')
end
return 1
