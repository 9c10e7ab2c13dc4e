-- refill: restore the contents of a shard: bits of slices, records of calls, forgotten digests, leases.
-- Bits are merged into the existing ones, and an item that is in flight stays there, so another restorer that
-- takes over may repeat every step.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4] merging 1: a string that exists only while the script runs
-- KEYS[5] merging 2: another such string
-- KEYS[6] leases
-- KEYS[7] in_flight
-- KEYS[8] holders
-- KEYS[9] dead_letters
-- KEYS[10] dead_letters_at
-- KEYS[11…] slices: allocate, piece: one bitmap; remove: the keys to remove; else none
--
-- ARGV[1] step: allocate, piece, remove, replies (records, unless there is a later one; one from the future, when
--   the clock was ahead, counts as made now), forget, unforget, leases (entries, unless there is one; and all
--   that in_flight and holders have of them), or dead_letters (unless there is one)
-- ARGV[2] uid: the filter's uid
-- ARGV[3] token: the token of this restorer
-- ARGV[4] offset: piece: its offset in bytes; allocate: the bytes of the bitmap; leases: the ms for which the holders
--   live; else 0
-- ARGV[5] number: the number of this step of this restorer, from 1; see _restorer.lua
-- ARGV[6…] data: piece: its bytes; replies: field and record in turn; forget: score and digest in turn;
--   unforget: digests; leases: digest, entry (empty: only one that is there) and the text of its own field in turn;
--   dead_letters: digest and letter in turn
--
-- Reply: 1; allocate: 1 if the bitmap was there in full length, else 0.
-- Errors: NOFILTER, MISMATCH, FORMAT, BADPHASE, BADARG

-- @include "_shard.lua" keys
-- @include "_time.lua" now
-- @include "_shard.lua" identity
-- @include "_restorer.lua" fence steps
-- @include "_time.lua" written

local replies_key, forgotten_key, merging_1, merging_2, slice_key = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[11]
local leases_key, in_flight_key, holders_key = KEYS[6], KEYS[7], KEYS[8]
local dead_letters_key, dead_letters_at_key = KEYS[9], KEYS[10]
local step, uid, token, offset, number, data = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local names = { 'replies', 'forgotten', 'merging_1', 'merging_2', 'leases', 'in_flight', 'holders' }
names[8], names[9] = 'dead_letters', 'dead_letters_at'
local refusal = check_keys(names, '^[tdhifl]%a*_?%a*_?%w*%.?%d*$') or fence_restorer(uid, token)
if refusal then return refusal end
refusal = note_step(number)
if refusal then return refusal end
if step == 'piece' and offset + #data > redis.call('STRLEN', slice_key) then
  return redis.error_reply('BADARG the piece ends past the bitmap')
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
  if string.find(slice_key, ':today%.?%d*$') then
    redis.call('HSET', KEYS[1], 'written', time_written(redis.call('HGET', KEYS[1], 'written')))
  end
elseif step == 'remove' then
  redis.call('UNLINK', unpack(KEYS, 11))
elseif step == 'replies' then
  for i = 6, #ARGV, 2 do
    local there = redis.call('HGET', replies_key, ARGV[i])
    local behind, archived_sequence, time = cmsgpack.unpack_limit(ARGV[i + 1], 2)
    local sequence = there and cmsgpack.unpack(there)
    if not sequence or sequence < archived_sequence then
      local now, record = tonumber(now_ms()), ARGV[i + 1]
      if time > now then record = cmsgpack.pack(archived_sequence, now) .. string.sub(record, behind + 1) end
      redis.call('HSET', replies_key, ARGV[i], record)
    end
  end
elseif step == 'forget' then
  redis.call('ZADD', forgotten_key, unpack(ARGV, 6))
elseif step == 'unforget' then
  redis.call('ZREM', forgotten_key, unpack(ARGV, 6))
elseif step == 'leases' then
  local till = string.format('%.0f', now_ms() + offset)
  for i = 6, #ARGV, 3 do
    local digest, entry, text = unpack(ARGV, i, i + 2)
    local there = redis.call('HGET', leases_key, digest)
    if not there and entry ~= '' then
      there = entry
      redis.call('HSET', leases_key, digest, entry)
      if text ~= '' then redis.call('HSET', leases_key, digest .. '+', text) end
    end
    if there then
      redis.call('ZADD', in_flight_key, 0, string.sub(there, 1, 8) .. digest)
      redis.call('ZADD', holders_key, till, string.sub(there, 1, 8))
    end
  end
elseif step == 'dead_letters' then
  local bytes = tonumber(redis.call('HGET', dead_letters_key, 'bytes') or 0)
  for i = 6, #ARGV, 2 do
    local digest, letter = ARGV[i], ARGV[i + 1]
    if not redis.call('HGET', dead_letters_key, digest) then
      bytes = bytes + #digest + #letter
      redis.call('HSET', dead_letters_key, digest, letter, 'bytes', string.format('%.0f', bytes))
      redis.call('ZADD', dead_letters_at_key, string.format('%.0f', struct.unpack('<d', letter)), digest)
    end
  end
else
  return redis.error_reply('BADARG refill takes allocate, piece, remove, replies, forget, unforget, leases, dead_letters')
end
beat()
return 1
