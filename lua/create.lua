-- create: make one shard of a filter, or read it if it is there.
-- The first creator's configuration counts for all. A shard is made by "make", and by "allocate" for each further segment
-- of today, one after the other. Of a filter of several shards, or segments, shard 0 is made in phase creating; "finish"
-- makes it idle, once the others are made. After a crash the next creator repeats all steps.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4] leases
-- KEYS[5] in_flight
-- KEYS[6] holders
-- KEYS[7] dead_letters
-- KEYS[8] dead_letters_at
-- KEYS[9] today: make, finish: its first segment; allocate: the next one
-- KEYS[10…] leftovers: make: slices that an earlier filter may have left; else none
--
-- ARGV[1] step: make, allocate or finish
-- ARGV[2] uid: the filter's uid
-- @if no redisbloom
-- ARGV[3] bytes: the bytes of a segment of today
-- @end if
-- @if redisbloom
-- ARGV[3] reserved: the error rate and the items of a segment of today, with / between
-- @end if
-- ARGV[4…] fields: make: fields of meta, field and value in turn; allocate: the number of the segment, from 1
--
-- Reply: the present meta, an array of field and value in turn.
-- @if no redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, BADARG
-- @end if
-- @if redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, MODULE, BADARG
-- @end if

-- @include "_shard.lua" keys identity
-- @include "_time.lua" now

local meta_key, today_key = KEYS[1], KEYS[9]
-- @if no redisbloom
local step, uid, bytes = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- @end if
-- @if redisbloom
local step, uid = ARGV[1], ARGV[2]
local rate, items = string.match(ARGV[3], '^([^/]+)/(%d+)$')
-- @end if
local names = { 'replies', 'forgotten', 'leases', 'in_flight', 'holders', 'dead_letters', 'dead_letters_at', 'today' }
local number = step == 'allocate' and tonumber(ARGV[4] or nil)
if number then names[8] = 'today.' .. number end
local refusal = check_keys(names, '^history')
if refusal then return refusal end
local existing = redis.call('HGET', meta_key, 'uid')

if step == 'finish' then
  local phase, format = unpack(redis.call('HMGET', meta_key, 'phase', 'format'))
  refusal = check_identity(existing, format, uid)
  if refusal then return refusal end
  if phase == 'dropping' then return redis.error_reply('NOFILTER the filter was dropped while it was made') end
  if redis.call('HGET', meta_key, 'made') then
    return redis.error_reply('BADARG allocate makes the other segments of today first')
  end
  if phase == 'creating' then redis.call('HSET', meta_key, 'phase', 'idle') end
-- @if no redisbloom
elseif step == 'make' and bytes and bytes > 0 and #ARGV >= 5 and #ARGV % 2 == 1 then
-- @end if
-- @if redisbloom
elseif step == 'make' and items and #ARGV >= 5 and #ARGV % 2 == 1 then
-- @end if
  if not existing then
    for i = 9, #KEYS do
      if redis.call('EXISTS', KEYS[i]) == 1 then
        return redis.error_reply('LOST meta is missing beside ' .. KEYS[i])
      end
    end
    local now = now_ms()
-- @if no redisbloom
    redis.call('SETRANGE', today_key, 0, '') -- without effect: a refusal (rights, memory) must come before any write
-- @end if
-- @if redisbloom
    refusal = try_module('BF.RESERVE')
    if refusal then return refusal end
-- @end if
    redis.call('UNLINK', unpack(KEYS, 2, 8))
    redis.call('HSET', meta_key, 'uid', uid, 'created', now, 'opened', now, unpack(ARGV, 4))
-- @if no redisbloom
    redis.call('SETRANGE', today_key, bytes - 1, '\0')
-- @end if
-- @if redisbloom
    local made = redis.pcall('BF.RESERVE', today_key, rate, items)
    if made.err then
      redis.call('UNLINK', meta_key)
      return refusal_of(made.err)
    end
-- @end if
  end
-- @if no redisbloom
elseif number and bytes and bytes > 0 then
-- @end if
-- @if redisbloom
elseif number and items then
-- @end if
  local phase, format, made, slices = unpack(redis.call('HMGET', meta_key, 'phase', 'format', 'made', 'slices'))
  refusal = check_identity(existing, format, uid)
  if refusal then return refusal end
  if phase == 'dropping' then return redis.error_reply('NOFILTER the filter was dropped while it was made') end
  if made and number == tonumber(made) then
    -- A segment that is there is an earlier filter's: it would make items seen that nobody has seen.
    if redis.call('EXISTS', today_key) == 1 then
      return redis.error_reply('LOST ' .. today_key .. ' is of an earlier filter')
    end
-- @if no redisbloom
    redis.call('SETRANGE', today_key, 0, '') -- without effect, as above
-- @end if
-- @if redisbloom
    refusal = try_module('BF.RESERVE')
    if refusal then return refusal end
-- @end if
    if number + 1 == tonumber(string.match(slices, ':(%d+)$')) then
      redis.call('HDEL', meta_key, 'made')
    else
      redis.call('HSET', meta_key, 'made', number + 1)
    end
-- @if no redisbloom
    redis.call('SETRANGE', today_key, bytes - 1, '\0')
-- @end if
-- @if redisbloom
    local reserved = redis.pcall('BF.RESERVE', today_key, rate, items)
    if reserved.err then
      redis.call('HSET', meta_key, 'made', made)
      return refusal_of(reserved.err)
    end
-- @end if
  elseif made and number > tonumber(made) then
    return redis.error_reply('BADARG segment ' .. made .. ' is the next')
  end
else
  return redis.error_reply(
    'BADARG create takes: make, uid, bytes, field and value in turn; allocate, uid, bytes, number; or finish, uid')
end
return redis.call('HGETALL', meta_key)
