-- turn: take one shard to its next epoch: today is closed, and an empty bitmap becomes today. This finishes the turn of
-- ring and growing; rolling is in phase rotating until its next history is built. The epoch is the fence: of several
-- processes that turn an epoch, one succeeds. If its reply was lost, the token in meta tells it that it did.
--
-- KEYS[1] meta
-- KEYS[2] next: the bitmap that becomes today, made by the step allocate
-- KEYS[3…] slices: the live slices under their names after the turn, from oldest to newest
--
-- ARGV[1] step: allocate (makes the next bitmap) or turn
-- ARGV[2] uid: the filter's uid
-- ARGV[3] epoch: the shard's present epoch
-- ARGV[4] token: the token of this rotation
-- ARGV[5] units: the units of the next bitmap
-- ARGV[6] bytes: the bytes of the next bitmap
-- ARGV[7] limit: growing: the items that the next bitmap is for; else 0
-- ARGV[8] period: ms that must have passed, by this server's clock, since the last turn; 0: turn in any case
--
-- Reply: 1.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, RESTORING, BADPHASE, BADARG

-- @include "_keys.lua"
-- @include "_identity.lua"
-- @include "_fence.lua"
-- @include "_check_slices.lua"
-- @include "_set_oldest.lua"
-- @include "_now.lua"
-- @include "_due.lua"
-- @include "_older.lua"
-- @include "_try_renaming.lua"

local meta_key, next_key = KEYS[1], KEYS[2]
local step, uid, epoch, token, units, bytes, limit, period = unpack(ARGV)
local refusal = check_keys({ 'today_next' })
if refusal then return refusal end
local meta
refusal, meta = fence(uid, epoch, 'idle')
refusal = refusal or check_due(period)
if refusal then return refusal end
local allocated = redis.call('STRLEN', next_key) == tonumber(bytes)

if step == 'allocate' then
  if not allocated then
    if redis.call('EXISTS', next_key) == 1 then redis.call('UNLINK', next_key) end
    redis.call('SETRANGE', next_key, bytes - 1, '\0')
  end
  return 1
elseif step ~= 'turn' then
  return redis.error_reply('BADARG turn takes the steps allocate and turn')
elseif not allocated then
  return redis.error_reply('BADPHASE the next bitmap is not allocated')
end
refusal = check_slices(meta.slices)
if refusal then return refusal end

local base = string.sub(meta_key, 1, -1 - #'meta')
local more = redis.call('HMGET', meta_key, 'retention', 'window', 'inserted', 'opened', 'closed', 'oldest', 'new')
local retention, window, inserted, opened, closed, oldest, new = unpack(more)
local moves, entries = one_older(base, meta.slices)
-- A ring with a full window loses its oldest slice: the next slice takes its name.
if retention == 'ring' and #moves == tonumber(window) then
  table.remove(moves, 1)
  table.remove(entries, 1)
  oldest = epoch - #moves + 1
end
moves[#moves + 1], entries[#entries + 1] = { next_key, base .. 'today' }, table.concat({ 'today', units, bytes }, ':')
for i, move in ipairs(moves) do
  if #KEYS ~= 2 + #moves or KEYS[2 + i] ~= move[2] then
    return redis.error_reply('BADPHASE the live slices are ' .. meta.slices)
  end
end

local now = now_ms()
opened = string.format('%.0f', math.min(opened, now)) -- opened is later if this server's clock was ahead
try_renaming(next_key)
redis.call('HSET', meta_key, 'epoch', epoch + 1, 'phase', retention == 'rolling' and 'rotating' or 'idle', 'token', token,
  'slices', table.concat(entries, ' '), 'inserted', 0, 'opened', now)
if limit ~= '0' then redis.call('HSET', meta_key, 'limit', limit) end
if new then redis.call('HSET', meta_key, 'new', 0) end
set_oldest(table.concat({ closed or '', table.concat({ epoch, opened, now, inserted, new or nil }, ':') }, ' '), tonumber(oldest))
redis.call('HDEL', meta_key, 'pieces', 'late', 'halted', 'ahead')
for _, move in ipairs(moves) do
  if move[1] ~= move[2] then redis.call('RENAME', move[1], move[2]) end
end
return 1
