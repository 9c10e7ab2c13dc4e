-- turn: take one shard to its next epoch, or past some that were missed.
-- Today is closed, and an empty bitmap becomes today. This finishes the turn of ring and growing; rolling is in phase
-- rotating until its next history is built. The epoch is the fence: of several processes that turn an epoch, one
-- succeeds. If its reply was lost, the token in meta tells it that it did. Slices that have expired in the new epoch go
-- at once (rolling: if all have; else when the next history is built).
--
-- KEYS[1] meta
-- KEYS[2] next: allocate: the segment of the next today that is made; turn: its first segment
-- KEYS[3…] slices: turn: its other segments; then all segments of the live slices under their names after the turn, from
--   oldest to newest; then those of slices that go, under names that no slice has after it, from oldest to newest;
--   then, if more than four bitmaps go (redisbloom: more than one), gone:epoch:1, gone:epoch:2 and so on, a name for each
--
-- ARGV[1] step: allocate (makes the next bitmap) or turn
-- ARGV[2] uid: the filter's uid
-- ARGV[3] epoch: the shard's present epoch
-- ARGV[4] token: the token of this rotation
-- ARGV[5] units: the units of a segment of the next today
-- ARGV[6] bytes: its bytes
-- ARGV[7] limit: growing: the items that the next bitmap is for; else 0
-- ARGV[8] period: ms that must have passed, by this server's clock, since the last turn; 0: turn in any case
-- ARGV[9] by: the epochs to go forward: 1, or more if the shard was not written to for so many periods less one
-- ARGV[10] opened: ms: the next today counts as opened then, or later if the shard's own times say so; 0: now
-- ARGV[11] segments: the number of segments of the next today
-- @if redisbloom
-- ARGV[12] rate: the error rate of the next today
-- @end if
--
-- Reply: 1.
-- @if no redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, RESTORING, BADPHASE, BADARG
-- @end if
-- @if redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, RESTORING, MODULE, BADPHASE, BADARG
-- @end if

-- @include "_shard.lua" keys identity
-- @include "_rotation.lua" fence
-- @include "_slices.lua" lengths
-- @include "_rotation.lua" oldest
-- @include "_time.lua" now
-- @include "_due.lua" turn
-- @include "_rotation.lua" older
-- @include "_try.lua" renaming

local meta_key, next_key = KEYS[1], KEYS[2]
local step, uid, epoch, token, units, bytes, limit = unpack(ARGV)
local period, by, given, segments = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local refusal = check_keys({})
if refusal then return refusal end
local base, next_row = string.sub(meta_key, 1, -1 - #'meta'), {}
if not segments or segments < 1 or segments % 1 ~= 0 then
  return redis.error_reply('BADARG segments is a whole number from 1')
end
append_row(next_row, base .. 'today_next', segments)
local named = false -- whether the first keys are segments of the next today: one of them for allocate, and all for turn
for i, key in ipairs(next_row) do
  if step == 'allocate' then
    named = named or (key == next_key and #KEYS == 2)
  else
    named = (named or i == 1) and key == KEYS[1 + i]
  end
end
if not named then return redis.error_reply('BADARG KEYS[2] must be ' .. base .. 'today_next, or one of its segments') end
local meta
refusal, meta = fence(uid, epoch, 'idle')
if refusal then return refusal end
if not by or by < 1 or by % 1 ~= 0 or (by > 1 and period == 0) then
  return redis.error_reply('BADARG by is a whole number from 1, and 1 where no period must have passed')
end
local opens
refusal, opens = check_due(period, by)
if refusal then return refusal end
local allocated = true
for i = 2, step == 'allocate' and 2 or 1 + segments do
-- @if no redisbloom
  local whole = redis.call('STRLEN', KEYS[i]) == tonumber(bytes)
-- @end if
-- @if redisbloom
  local whole = is_reserved(KEYS[i], tonumber(units))
-- @end if
  allocated = allocated and whole
end

if step == 'allocate' then
  if not allocated then
-- @if redisbloom
    refusal = try_module('BF.RESERVE') -- before a removal, behind which a full server would let it through
    if refusal then return refusal end
-- @end if
    if redis.call('EXISTS', next_key) == 1 then redis.call('UNLINK', next_key) end
-- @if no redisbloom
    redis.call('SETRANGE', next_key, bytes - 1, '\0')
-- @end if
-- @if redisbloom
    local made = redis.pcall('BF.RESERVE', next_key, ARGV[12], units)
    if made.err then return refusal_of(made.err) end
-- @end if
  end
  return 1
elseif step ~= 'turn' then
  return redis.error_reply('BADARG turn takes the steps allocate and turn')
elseif not allocated then
  return redis.error_reply('BADPHASE the next bitmap is not allocated')
end
refusal = check_slices(meta.slices)
if refusal then return refusal end

local more = redis.call('HMGET', meta_key, 'retention', 'window', 'inserted', 'opened', 'closed', 'oldest', 'new')
local retention, window, inserted, opened, closed, oldest, new = unpack(more)
local moves, entries = one_older(base, meta.slices)
local present, names, taken, going = {}, {}, {}, {}
for _, move in ipairs(moves) do
  append_row(present, move[1], move[3])
end
-- A ring loses the slices that are out of its window. Most of their names are taken by others. Rolling loses all, if
-- today is out of it, and no history is built.
if retention == 'ring' then
  oldest = math.max(tonumber(oldest), epoch + by - window + 1)
  local expired = 0
  for each in string.gmatch((closed or '') .. ' ' .. epoch, '(%d+)%S*') do
    if tonumber(each) < oldest then expired = expired + 1 end
  end
  for _ = 1, math.max(expired, #moves - window + 1) do
    local move = table.remove(moves, 1)
    append_row(going, move[1], move[3])
    table.remove(entries, 1)
  end
elseif retention == 'rolling' and by >= tonumber(window) then
  moves, entries, going = {}, {}, present
end
moves[#moves + 1] = { base .. 'today_next', base .. 'today', segments }
entries[#entries + 1] = table.concat({ 'today', units, bytes, segments }, ':')
local old, wanted = {}, { unpack(next_row) }
for _, move in ipairs(moves) do
  append_row(old, move[1], move[3])
  append_row(names, move[2], move[3])
end
local live = #names
for i = 1, live do
  taken[names[i]] = true
end
for _, key in ipairs(present) do
  if not taken[key] then names[#names + 1] = key end
end
for i = 1, #names do
  wanted[#wanted + 1] = names[i]
end
-- By UNLINK, and by a RENAME over it, the server frees a bitmap in a ms, and a filter of the module in ten. So many are
-- given names of their own, which expire one after the other.
-- @if no redisbloom
local MOST_FREED, APART = 4, 100 -- segments, ms
-- @end if
-- @if redisbloom
local MOST_FREED, APART = 1, 100 -- segments, ms
-- @end if
local away = base .. 'gone:' .. epoch .. ':'
for i = 1, #going > MOST_FREED and #going or 0 do
  wanted[#wanted + 1] = away .. i
end
for i = 1, math.max(#wanted, #KEYS - 1) do
  if KEYS[1 + i] ~= wanted[i] then
    return redis.error_reply('BADPHASE the live slices are ' .. meta.slices)
  end
end

local now = now_ms()
opened = string.format('%.0f', math.min(opened, now)) -- opened is later if this server's clock was ahead
opens = given > 0 and opens and string.format('%.0f', math.min(math.max(given, opens), now)) or now
try_renaming(next_key)
if #going > MOST_FREED then redis.call('PEXPIRE', away .. 1, APART) end -- there is no such key yet, but a right to it
redis.call('HSET', meta_key, 'epoch', epoch + by, 'phase', retention == 'rolling' and 'rotating' or 'idle',
  'token', token, 'slices', table.concat(entries, ' '), 'inserted', 0, 'opened', opens)
if limit ~= '0' then redis.call('HSET', meta_key, 'limit', limit) end
if new then redis.call('HSET', meta_key, 'new', 0) end
set_oldest(
  table.concat({ closed or '', table.concat({ epoch, opened, now, inserted, new or nil }, ':') }, ' '),
  tonumber(oldest)
)
redis.call('HDEL', meta_key, 'pieces', 'late', 'halted', 'ahead', 'written')
for i = 1, #going > MOST_FREED and #going or 0 do
  redis.call('RENAME', going[i], away .. i)
  redis.call('PEXPIRE', away .. i, i * APART)
end
for i = 1, live do
  if old[i] ~= names[i] then redis.call('RENAME', old[i], names[i]) end
end
if #names > live then redis.call('UNLINK', unpack(names, live + 1)) end
return 1
