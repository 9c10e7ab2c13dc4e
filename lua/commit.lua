-- commit: make items in flight final: they are inserted, whoever has them.
-- An item that nobody has in flight is inserted if it has not been seen, as insert does. With a reason items are
-- rejected: only those that this holder has in flight are inserted, and a dead letter of each is kept.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4] leases
-- KEYS[5] in_flight
-- KEYS[6] holders
-- KEYS[7] dead_letters
-- KEYS[8] dead_letters_at
-- KEYS[9…] slices: of the live slices, from oldest to newest, the segments of the items
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; with + behind it the caller sends WAIT,
--   with * it turns the shard at DUE, with = and 16 hex digits it is a part of that request), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5] holder: 16 hex digits that do not begin with 00, or - for none
-- ARGV[6] lease: the ms for which the holder lives without another call; at most 3600000
-- ARGV[7] reason: - for none; or + and the reason why the items are rejected, at most 200 bytes
-- ARGV[8…] items: at most 500 digests, all of this shard (for a quick call 250)
--
-- Reply: an array of one integer an item: 0 = this call made it final; n = seen, in the n-th newest slice; with a
-- reason:
--   -1 = this holder did not have it in flight, and nothing is done.
-- @if no redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, FULL, DUE, RESTORING, OLDCALL, LATECALL, BADARG
-- @end if
-- @if redisbloom
-- -2 = not answered, because the module failed before it: nothing is written, so ask about it again, under another id.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, FULL, DUE, RESTORING, MODULE, OLDCALL, LATECALL, BADARG
-- @end if

local call, unpack_digest = redis.call, struct.unpack
local KEYS, ARGV = KEYS, ARGV -- a local is faster than a global
local uid, base, CLAIMS, FIRST_SLICE, FINAL = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), 2, 9, true
local NAMES = { 'meta', 'replies', 'forgotten', 'leases', 'in_flight', 'holders', 'dead_letters', 'dead_letters_at' }
local LEASES, IN_FLIGHT, HOLDERS, DEAD_LETTERS, DEAD_LETTERS_AT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local FIRST_ITEM, LAST_ITEM, HOLDER, INSERTS = 8, #ARGV, 5, true
local MOST_REASON, MOST_LETTERS = 200, 1024 * 1024 -- bytes: of a reason, and of all dead letters of a shard
local OLDEST_A_CALL, OLDEST_A_LOOK = 1000, 10 -- letters; more small ones may have to go for a long one

-- @include "_items.lua" read
-- @include "_holder.lua" read beat
-- @include "_try.lua" when_full

if max_age ~= 0 then return redis.error_reply('BADARG max_age is 0 here') end
local reason = string.match(ARGV[7], '^%+(.*)$')
if (ARGV[7] ~= '-' and not reason) or (reason and (not own or #reason > MOST_REASON)) then
  return redis.error_reply('BADARG a reason is -; or + and at most 200 bytes, from a holder')
end
local SCOPE = table.concat({ ARGV[3], ARGV[5], ARGV[6], ARGV[7] }, ' ')

-- @include "_shard.lua" identity meta

-- A repeat has the same answers. It is a beat too.
local function repeated(answers)
  write_when_full(KEYS[1])
  if own and phase ~= 'restoring' then beat(time_ms()) end
  return answers
end

-- @include "_call.lua" id
-- @include "_slices.lua" live
-- @include "_items.lua" shard
-- @include "_due.lua" call
-- @include "_time.lua" written
-- @include "_$layout.lua" common has
-- @include "_leases.lua" entries take_out
-- @include "_dead_letters.lua" read delete

local any_forgotten, ages, age_in, oldest_age = changed and call('EXISTS', KEYS[3]) == 1, {}

-- @include "_age.lua" age

-- All items of a call that changed nothing were seen. Items that have expired since count as seen. Of a call with a
-- reason none this holder had in flight.
if changed_nothing then
  for i = 1, count do
    local age = reason and -1 or age_in(unpack_digest('<I4I4I4I4', packed, i * 16 - 15))
    ages[i] = age ~= 0 and age or oldest_age
  end
  return repeated(ages)
end

-- @include "_count.lua" room

-- What is noted about the items that are rejected: failures, lapses, reason, and what is kept of them.
local made, noted = {}, {}
for digest, entry in pairs(reason and entries or {}) do
  if entry then
    local kept = #entry > SHORT and string.sub(entry, SHORT + 1) or call('HMGET', LEASES, digest .. '+')[1] or ''
    made[digest] = string.sub(entry, 9, SHORT) .. string.char(#reason) .. reason .. kept
  end
end

write_when_full(KEYS[1])
if own then try_beating() end
if reason then call('ZRANGE', DEAD_LETTERS_AT, 0, 0) end

remove_old_records()

local tried, added, fresh, moved = false, 0, 0, {}
local last_seen = string.find(policy, '/last-seen', 1, true)
local first_written = string.find(policy, '/all/', 1, true) and FIRST_SLICE or LAST_SLICE
for i = 1, count do
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  local d0, d1, d2, d3 = unpack_digest('<I4I4I4I4', digest)
  local entry = entries[digest]
  local forgotten = any_forgotten and call('ZSCORE', KEYS[3], digest)
  local wrote, age, missing = false, 0, 0
  -- What the bitmaps lack after a restore is inserted again, whoever has it now.
  local skipped = reason and not recorded and (not entry or string.sub(entry, 1, 8) ~= own)
  if skipped then
    age, entry, forgotten = -1, nil, nil
  elseif not entry and not forgotten then
    age = age_in(d0, d1, d2, d3)
  end
  for n = first_written, (age == 0 or (last_seen and not skipped)) and LAST_SLICE or 0 do
    local key, size, d1, d2, d3 = rows and segment_of(n, d3) or KEYS[n], units[n], d1, d2, d3

-- @include "_$layout.lua" test

    -- An item in flight is not counted yet, unless it was forgotten: it was inserted before, and its counters stay.
    if '$layout' == 'counting' and entry and not forgotten then wrote = true end
    -- A user may lack the right to a command: so all are tried before the first bit.
    if (wrote or entry or forgotten) and not tried then
      tried = true
      call('ZREM', KEYS[3], '')
      try_taking()
      try_deleting()

-- @include "_$layout.lua" try

      if timed then
        call('HSET', KEYS[1], 'inserted', inserted + 1, 'written', time_written(written, now))
      else
        call('HSET', KEYS[1], 'inserted', inserted + 1)
      end
    end
    if wrote then

-- @include "_$layout.lua" write

      missing = missing + 1
    end
  end
-- @if redisbloom
  if failed then break end
-- @end if
  if forgotten then call('ZREM', KEYS[3], digest) end
  if entry then take_out(digest, entry) end
  if (entry and reason) or (letters[digest] and not reason) then noted[#noted + 1] = digest end
  if age == 0 or wrote then
    added = added + 1
    if age == 0 then
      fresh = fresh + 1
    else
      local number = first_written < LAST_SLICE and missing or age - 1
      moved[number] = (moved[number] or 0) + 1
    end
  end
  ages[i] = age
end

-- @if redisbloom
-- @include "_redisbloom.lua" unanswered
-- @end if
if not tried and last_seen then call('HSET', KEYS[1], 'written', time_written(written, now)) end

-- @include "_count.lua" count

local time, fields, members = #noted > 0 and time_ms(), {}, {}
for _, digest in ipairs(noted) do
  delete_letter(digest)
  if reason then
    local letter = struct.pack('<d', time) .. made[digest]
    letters[digest], letter_bytes = letter, letter_bytes + #letter + #digest
    fields[#fields + 1], fields[#fields + 2] = digest, letter
    members[#members + 1], members[#members + 2] = time, digest
  end
end
if #fields > 0 then
  call('HSET', DEAD_LETTERS, 'bytes', string.format('%.0f', letter_bytes), unpack(fields))
  call('ZADD', DEAD_LETTERS_AT, unpack(members))
end
-- The oldest letters go, and of this call's own some only if that is not enough: the clock may have been set back.
local own_letters, looked_for = 0, 0
while letter_bytes > MOST_LETTERS and looked_for < OLDEST_A_CALL do
  local old_ones = call('ZRANGE', DEAD_LETTERS_AT, own_letters, own_letters + OLDEST_A_LOOK - 1)
  if #old_ones == 0 then break end
  for _, digest in ipairs(old_ones) do
    if made[digest] then
      own_letters = own_letters + 1
    elseif letter_bytes > MOST_LETTERS then
      letters[digest] = call('HMGET', DEAD_LETTERS, digest)[1]
      if delete_letter(digest) == 0 then call('ZREM', DEAD_LETTERS_AT, digest) end
    end
  end
  looked_for = looked_for + OLDEST_A_LOOK
end
for _, digest in ipairs(noted) do
  if letter_bytes > MOST_LETTERS then delete_letter(digest) end
end
if #noted > 0 then
  local claimed, total = unpack(call('HMGET', KEYS[1], 'claimed', 'rejected'))
  call('HSET', KEYS[1], 'claimed', string.format('%.0f', (claimed or 0) + #noted),
    'rejected', string.format('%.0f', (total or 0) + (reason and #noted or 0)))
end

local answers = added > 0 and ages or nil

-- @include "_call.lua" record

if own then beat(time_ms()) end
return recorded or ages
