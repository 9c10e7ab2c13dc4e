-- build: make history_1 into the next history: rolling, phase rotating, once the closed slice is in the archive.
-- The caller reads the closed slices of the window from the archive and writes their OR, piece by piece. The old
-- history has all bits that are added, so answers do not change.
-- Pieces are numbered over the whole row: those of history_1, then those of history_1.1, and so on.
--
-- KEYS[1] meta
-- KEYS[2] history: its first segment; piece: the segment of the piece
-- KEYS[3] history_1: likewise
-- KEYS[4] today: likewise
-- KEYS[5…] slices: finish: the other segments, history.1, history_1.1, history.2 and so on; then, if the history has more
--   than four, gone:epoch:1, gone:epoch:2 and so on, a name for each; else none
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
-- ARGV[10] segment: piece: the number of the segment, from 0; else 0
--
-- Reply: 1.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, RESTORING, BADPHASE, BADARG

-- @include "_shard.lua" keys identity
-- @include "_rotation.lua" fence
-- @include "_slices.lua" lengths
-- @include "_rotation.lua" oldest
-- @include "_try.lua" renaming when_full

local meta_key, history_key, closed_key = KEYS[1], KEYS[2], KEYS[3]
local step, uid, epoch, token, number, oldest, offset, data, late, segment = unpack(ARGV)
local behind = segment ~= '0' and '.' .. (segment or '') or ''
local refusal = check_keys({ 'history' .. behind, 'history_1' .. behind, 'today' .. behind }, '^[hg]%a+[_:]?%d*[.:]?%d*$')
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
  local geometry, segments = string.match(meta.slices, 'today(:%d+:%d+:(%d+))')
  local base = string.sub(meta_key, 1, -1 - #'meta')
  local MOST_FREED, APART = 4, 100 -- bitmaps, ms: see turn
  local wanted, built, old, away = { history_key, closed_key, KEYS[4] }, { closed_key }, { history_key }, {}
  for n = 1, segments - 1 do
    old[n + 1], built[n + 1] = base .. 'history.' .. n, base .. 'history_1.' .. n
    wanted[#wanted + 1], wanted[#wanted + 2] = old[n + 1], built[n + 1]
  end
  for n = 1, tonumber(segments) > MOST_FREED and segments or 0 do
    away[n] = base .. 'gone:' .. epoch .. ':' .. n
    wanted[#wanted + 1] = away[n]
  end
  for i = 1, math.max(#wanted, #KEYS - 1) do
    if KEYS[1 + i] ~= wanted[i] then
      return redis.error_reply('BADARG KEYS[' .. 1 + i .. '] must be ' .. (wanted[i] or 'missing'))
    end
  end
  local history = string.find(meta.slices, 'history_1', 1, true) -- if not, all had expired when the shard turned
  local before = history and string.find(meta.slices, '^history:') -- the history that is replaced
  if history then try_renaming(closed_key) end
  if before and #away > 0 then redis.call('PEXPIRE', away[1], APART) end -- there is no such key yet, but a right to it
  redis.call('HSET', meta_key, 'phase', 'idle',
    'slices', (history and 'history' .. geometry .. ' ' or '') .. 'today' .. geometry)
  set_oldest(closed, tonumber(oldest))
  redis.call('HDEL', meta_key, 'pieces', 'late', 'halted')
  for n = 1, before and #away or 0 do
    redis.call('RENAME', old[n], away[n])
    redis.call('PEXPIRE', away[n], n * APART)
  end
  for n = 1, history and #built or 0 do
    redis.call('RENAME', built[n], old[n])
  end
else
  return redis.error_reply('BADARG build takes the steps archived, piece, finish and halted')
end
return 1
