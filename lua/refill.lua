-- refill: restore the contents of a shard: bits of slices, records of calls, forgotten digests. Bits are merged into
-- the existing ones, so another restorer that takes over may repeat every step.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4] merging 1: a string that exists only while the script runs
-- KEYS[5] merging 2: another such string
-- KEYS[6…] slices: allocate, piece: one slice; remove: the keys to remove; else none
--
-- ARGV[1] step: allocate, piece, remove, replies (records, unless there is a later one), forget or unforget
-- ARGV[2] uid: the filter's uid
-- ARGV[3] token: the token of this restorer
-- ARGV[4] offset: piece: its offset in bytes; allocate: the bytes of the slice; else 0
-- ARGV[5…] data: piece: its bytes; replies: field and record in turn; forget: score and digest in turn;
--   unforget: digests
--
-- Reply: 1; allocate: 1 if the slice was there in full length, else 0.
-- Errors: NOFILTER, MISMATCH, FORMAT, BADPHASE, BADARG

-- @include "_keys.lua"
-- @include "_now.lua"
-- @include "_identity.lua"
-- @include "_restorer.lua"

local replies_key, forgotten_key, merging_1, merging_2, slice_key = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local step, uid, token, offset, data = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local refusal = check_keys({ 'replies', 'forgotten', 'merging_1', 'merging_2' }, '^[thf]%a*_?%w*$') or fence_restorer(uid, token)
if refusal then return refusal end
if step == 'piece' and offset + #data > redis.call('STRLEN', slice_key) then
  return redis.error_reply('BADARG the piece ends past the slice')
end

if step == 'allocate' then
  beat()
  if redis.call('STRLEN', slice_key) == offset then return 1 end
  if redis.call('EXISTS', slice_key) == 1 then redis.call('UNLINK', slice_key) end
  redis.call('SETRANGE', slice_key, offset - 1, '\0')
  return 0
elseif step == 'piece' then
  redis.call('SET', merging_1, redis.call('GETRANGE', slice_key, offset, offset + #data - 1))
  redis.call('SET', merging_2, data)
  redis.call('BITOP', 'OR', merging_1, merging_1, merging_2)
  redis.call('SETRANGE', slice_key, offset, redis.call('GET', merging_1))
  redis.call('DEL', merging_1, merging_2)
elseif step == 'remove' then
  redis.call('UNLINK', unpack(KEYS, 6))
elseif step == 'replies' then
  for i = 5, #ARGV, 2 do
    local there = redis.call('HGET', replies_key, ARGV[i])
    local archived_sequence = cmsgpack.unpack(ARGV[i + 1])
    local sequence = there and cmsgpack.unpack(there)
    if not sequence or sequence < archived_sequence then
      redis.call('HSET', replies_key, ARGV[i], ARGV[i + 1])
    end
  end
elseif step == 'forget' then
  redis.call('ZADD', forgotten_key, unpack(ARGV, 5))
elseif step == 'unforget' then
  redis.call('ZREM', forgotten_key, unpack(ARGV, 5))
else
  return redis.error_reply('BADARG refill takes allocate, piece, remove, replies, forget and unforget')
end
beat()
return 1
