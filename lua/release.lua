-- release: give back what is in flight, to be offered again after a delay.
-- Until then a delay holder has it, and these do not die. Or offer dead letters once more.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4] leases
-- KEYS[5] in_flight
-- KEYS[6] holders
-- KEYS[7] dead_letters
-- KEYS[8] dead_letters_at
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; with + behind it the caller sends WAIT,
--   with = and 16 hex digits it is a part of that request), or - for none
-- ARGV[3] max_age: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5] holder: 16 hex digits that do not begin with 00: only what this holder has; or - for none: whoever has it
-- ARGV[6] lease: the ms for which the holder lives without another call; at most 3600000
-- ARGV[7] delay holder: 16 hex digits that begin with 00, drawn for this call
-- ARGV[8] delay: the ms before the items are offered again; at most 604800000
-- ARGV[9] failed: 1 to count a failure of each item, else 0; again: offer dead letters, of items that nobody has in
--   flight, without failures and lapses, and delete them; from then on they count as forgotten, too
-- ARGV[10…] items: at most 500 digests, all of this shard (for a quick call 250)
--
-- Reply: an array of one integer an item: 1 = the holder had it in flight, and it is given back, 0 = it had not; again:
--   1 = it was a dead letter.
-- Errors: NOFILTER, MISMATCH, FORMAT, RESTORING, OLDCALL, LATECALL, BADARG

local call = redis.call
local uid, base, FIRST_ITEM, LAST_ITEM, HOLDER = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), 10, #ARGV, 5
local INSERTS = false
local NAMES = { 'meta', 'replies', 'forgotten', 'leases', 'in_flight', 'holders', 'dead_letters', 'dead_letters_at' }
local LEASES, IN_FLIGHT, HOLDERS, DEAD_LETTERS, DEAD_LETTERS_AT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local IN_ENTRY = 1024 -- as in claim
local refusal

-- @include "_items.lua" read
-- @include "_holder.lua" read beat
-- @include "_try.lua" when_full

local delay_holder, delay, failed = ARGV[7], tonumber(ARGV[8]), ARGV[9]
if not string.find(delay_holder, '^00' .. string.rep('%x', 14) .. '$') then
  return redis.error_reply('BADARG a delay holder is 16 hex digits that begin with 00')
elseif not delay or delay < 0 or delay > MOST_DELAY or delay % 1 ~= 0 then
  return redis.error_reply('BADARG a delay is 0 to ' .. MOST_DELAY .. ' ms')
elseif max_age ~= 0 or (failed ~= '0' and failed ~= '1' and failed ~= 'again') then
  return redis.error_reply('BADARG max_age is 0, and failed is 0, 1 or again')
end
local SCOPE = table.concat({ ARGV[5], ARGV[6], ARGV[8], failed }, ' ')

-- @include "_shard.lua" identity state

-- A repeat has the same answers. It is a beat too.
local function repeated(answers)
  write_when_full(KEYS[1])
  if own then beat(time_ms()) end
  return answers
end

-- @include "_call.lua" id
-- @include "_leases.lua" entries
-- @include "_dead_letters.lua" read delete
-- @include "_time.lua" now changed forgotten

delay_holder = from_hex(delay_holder)
local given, old, fields, members, retried = {}, {}, {}, {}, {}
for i = 1, count do
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  local entry = not changed_nothing and entries[digest]
  local letter = failed == 'again' and not changed_nothing and not entries[digest] and letters[digest]
  given[i] = 0
  if letter then
    local made, kept = delay_holder .. struct.pack('<I2I2', 0, 0), string.sub(letter, 14 + string.byte(letter, 13))
    if #kept > IN_ENTRY then
      fields[#fields + 1], fields[#fields + 2] = digest .. '+', kept
    else
      made = made .. kept
    end
    fields[#fields + 1], fields[#fields + 2] = digest, made
    members[#members + 1], members[#members + 2] = 0, delay_holder .. digest
    retried[#retried + 1], entries[digest], given[i] = digest, made, 1
  elseif entry and failed ~= 'again' and (not own or string.sub(entry, 1, 8) == own) then
    local failures, lapses, after = struct.unpack('<I2I2', entry, 9)
    if failed == '1' and failures < 65535 then failures = failures + 1 end
    old[#old + 1] = string.sub(entry, 1, 8) .. digest
    fields[#fields + 1] = digest
    fields[#fields + 1] = delay_holder .. struct.pack('<I2I2', failures, lapses) .. string.sub(entry, after)
    members[#members + 1], members[#members + 2] = 0, delay_holder .. digest
    entries[digest], given[i] = nil, 1
  end
end

write_when_full(KEYS[1])
try_beating()
try_deleting()
if #retried > 0 then call('ZREM', KEYS[3], '') end
local adds_holder, changes = #members > 0, #members / 2
clock = clock or time_ms()

remove_old_records()
-- @include "_holder.lua" tidy

if changes > 0 then
  call('HSET', KEYS[1], 'claimed', string.format('%.0f', (call('HGET', KEYS[1], 'claimed') or 0) + changes))
  if #old > 0 then call('ZREM', IN_FLIGHT, unpack(old)) end
  call('HSET', LEASES, unpack(fields))
  call('ZADD', IN_FLIGHT, unpack(members))
  call('ZADD', HOLDERS, string.format('%.0f', clock + delay), delay_holder)
end
-- A dead letter is in the slices. It is new once more, for the commit and for whoever takes the entry out, and it is
-- not inserted again by a late repeat of the call that gave it up.
if #retried > 0 then
  local epoch = call('HGET', KEYS[1], 'epoch')
  note_change()
  for _, digest in ipairs(retried) do
    delete_letter(digest)
    call('ZADD', KEYS[3], forgotten_score(epoch), digest)
  end
end
local answers = changes > 0 and given or nil

-- @include "_call.lua" record

if own then beat(time_ms()) end
return given
