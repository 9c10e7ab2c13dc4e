-- insert: test items and insert those that have not been seen, in one atomic step.
--
-- The keys of a filter with the name news and the prefix urifilter; the keys of a shard have one {hash tag}
-- (of another shard than 0 it may end in a salt, {news:1-53}; urifilter_redis/protocol/keys.py says which):
--   urifilter:filters             set: the names of the filters (written outside the scripts)
--   urifilter:{news:0}:meta       hash: uid, configuration, epoch, phase, slices (the live slices, oldest first, as
--                                 "name:units:bytes:segments …"), inserted (number of items in today), opened (time of today,
--                                 ms), ahead (see reopen), written (time of the last change of today, ms), closed (the
--                                 closed slices of the window, as "epoch:opened:closed:inserted …"), oldest (epoch);
--                                 with last-seen: new (items of today), and so "epoch:opened:closed:inserted:new …";
--                                 growing: limit (items that today is for); rotating: token, pieces, late, halted;
--                                 made (how many segments of today are made, until all are);
--                                 with claims: claims (the longest lease, ms), claimed (count of changes of leases and
--                                 dead letters), rejected (how many items were rejected in all);
--                                 with an archive: checkpoint (number), checkpointed and changed (ms), worker, leased,
--                                 timeline (token of the last restore);
--                                 restored (last sign of life of a restore, ms; it stays);
--                                 lost (times of a restore and its checkpoint, until somebody acknowledges it);
--                                 restoring: restorer, before (the phase), arranged,
--                                 worked (1: Redis was written to since the checkpoint), kept (counting: the bitmaps
--                                 that stay as they are)
--   urifilter:{news:0}:replies    hash: client/slot -> the record of the slot's last writing call
--   urifilter:{news:0}:forgotten  sorted set: digests that count as new once more, scored by epoch and time
--   urifilter:{news:0}:leases     hash: digest -> what is in flight: holder (8 bytes), failures and lapses
--                                 (16 bits each, little-endian), and what is kept of it (item and payload); over 1,024
--                                 bytes that stands in the field digest and "+"
--   urifilter:{news:0}:in_flight  sorted set, all scores 0: holder and digest
--   urifilter:{news:0}:holders    sorted set: holder -> until when it lives, ms
--   urifilter:{news:0}:dead_letters  hash: digest -> dead letter (see _dead_letters.lua); bytes -> the bytes of all of
--                                 them, at most 1 MiB
--   urifilter:{news:0}:dead_letters_at  sorted set: digests of these, scored by their time, ms
--   urifilter:{news:0}:today      bitmap: the newest slice; only this is written to (ring with write=all: all slices)
--   urifilter:{news:0}:today.1    bitmap: its second segment, if it has more than one; each slice has a row of them
--   urifilter:{news:0}:history    bitmap: rolling: all slices older than today that have not expired, merged
--   urifilter:{news:0}:history_1  bitmap: the newest closed slice; history_2 … are older (rolling: history_1 exists
--                                 only while a rotation runs)
--   urifilter:{news:0}:today_next bitmap: the next today, before a rotation
--   urifilter:{news:0}:slice:7    hash: rolling: the closed slice of epoch 7, compressed, and its manifest
--   urifilter:{news:0}:rates      hash: minute -> a sample for the plots of the service (written outside the scripts)
--   urifilter:{news:0}:merging_1  strings: merging_1 and merging_2 exist only while merge or refill runs
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- @if no claims
-- KEYS[4…] slices: of the live slices, from oldest to newest, the segments of the items
-- @end if
-- @if claims
-- KEYS[4] leases
-- KEYS[5] in_flight
-- KEYS[6] holders
-- KEYS[7] dead_letters
-- KEYS[8] dead_letters_at
-- KEYS[9…] slices: of the live slices, from oldest to newest, the segments of the items
-- @end if
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: client/slot/sequence/deadline (server time in ms; with + behind it the caller sends WAIT,
--   with * it turns the shard at DUE, with = and 16 hex digits it is a part of that request), or - for none
-- ARGV[3] max_age: ring: test only this many of the newest slices, or 0 for all; every other retention: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard; for a quick call, with n slices at most 2000/n
--
-- Reply: an array with the age of each item: 0 = new, and now inserted; n = seen, in the n-th newest slice (rolling:
-- 2 = in any older slice; ring with write=all: 1 = seen); -1 = in flight (see claim), nothing is written.
-- @if no redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, FULL, DUE, RESTORING, OLDCALL, LATECALL, BADARG
-- @end if
-- @if redisbloom
-- -2 = not answered, because the module failed before it: nothing is written, so ask about it again, under another id.
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, FULL, DUE, RESTORING, MODULE, OLDCALL, LATECALL, BADARG
-- @end if

local call, unpack_digest = redis.call, struct.unpack
local KEYS, ARGV = KEYS, ARGV -- a local is faster than a global
local uid, base, CLAIMS = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), $claims
local FIRST_ITEM, LAST_ITEM, SCOPE, INSERTS, repeated = 5, #ARGV, ARGV[3], true
-- @if no claims
local FIRST_SLICE, NAMES = 4, { 'meta', 'replies', 'forgotten' }
-- @end if
-- @if claims
local FIRST_SLICE, FINAL = 9, false
local NAMES = { 'meta', 'replies', 'forgotten', 'leases', 'in_flight', 'holders', 'dead_letters', 'dead_letters_at' }
local LEASES, IN_FLIGHT, HOLDERS, DEAD_LETTERS, DEAD_LETTERS_AT = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
-- @end if

-- @include "_items.lua" read
-- @include "_shard.lua" identity meta
-- @include "_age.lua" max_age
-- @include "_call.lua" id
-- @include "_slices.lua" live
-- @include "_items.lua" shard
-- @include "_due.lua" call
-- @include "_time.lua" written
-- @include "_$layout.lua" common
-- @if claims

-- @include "_leases.lua" entries take_out
-- @include "_dead_letters.lua" read delete

-- @end if

local one_slice, any_forgotten = LAST_SLICE == FIRST_SLICE, changed and call('EXISTS', KEYS[3]) == 1
local ages, age_in, oldest_age = {}
-- @if no redisbloom
if not one_slice or changed_nothing or policy == 'growing/-/-' then -- a function takes time to make, too
-- @include "_$layout.lua" has
-- @end if
-- @if redisbloom
-- Items may be added that are not tested, because BF.MADD tells which it has, and mostly all are new or none. A growing
-- filter that may have too little room for all of them must know before.
local adds_untested = one_slice and not changed_nothing
if adds_untested and policy == 'growing/-/-' then
  adds_untested = call('HGET', KEYS[1], 'limit') - inserted >= count
end
-- @end if
-- @include "_age.lua" age

-- @if no redisbloom
end
-- @end if

-- All items of a call that changed nothing were seen. Items that have expired since count as seen.
if changed_nothing then
  for i = 1, count do
    local age = age_in(unpack_digest('<I4I4I4I4', packed, i * 16 - 15))
    ages[i] = age > 0 and age or oldest_age
-- @if claims
    local entry = entries[string.sub(packed, i * 16 - 15, i * 16)]
    if entry and is_in_flight(entry) then ages[i] = -1 end
-- @end if
  end
  return ages
end

-- @include "_count.lua" room
-- @if redisbloom
-- @include "_redisbloom.lua" choose
-- @end if
remove_old_records()

-- @if redisbloom
-- @include "_redisbloom.lua" insert
-- @end if
-- @if no redisbloom
local tried, added, fresh, moved = false, 0, 0, {}
local last_seen = not one_slice and string.find(policy, '/last-seen', 1, true)
local first_written = not one_slice and string.find(policy, '/all/', 1, true) and FIRST_SLICE or LAST_SLICE
for i = 1, count do
  local d0, d1, d2, d3 = unpack_digest('<I4I4I4I4', packed, i * 16 - 15)
  local again = any_forgotten and call('ZSCORE', KEYS[3], string.sub(packed, i * 16 - 15, i * 16))
  local wrote, age, missing = false, 0, 0
-- @if claims
  local digest = string.sub(packed, i * 16 - 15, i * 16)
  local entry = entries[digest]
  local forgotten = again
  if entry then -- in flight, or lapsed and so new once more
    again = not is_in_flight(entry)
    age = again and 0 or -1
  end
-- @end if
  if not one_slice and not again and age == 0 then age = age_in(d0, d1, d2, d3) end
  for n = first_written, (age == 0 or (last_seen and age > 0)) and LAST_SLICE or 0 do
    local key, size, d1, d2, d3 = rows and segment_of(n, d3) or KEYS[n], units[n], d1, d2, d3

-- @include "_$layout.lua" test
-- @if claims

    -- A lapsed item is not counted yet, unless it was forgotten: it was inserted before, and its counters stay.
    if '$layout' == 'counting' and entry and not forgotten then wrote = true end
-- @end if

    -- A user may lack the right to a command. A script that stopped after its first bit would have inserted items
    -- without answering "new". So all commands that the call still needs are tried before the first bit. (A single
    -- item that is written to one slice, in a slot that has a record, needs none after it that was not tried.)
    if (wrote or again) and not tried then
      tried = true
-- @if no claims
      local removes = any_forgotten
-- @end if
-- @if claims
      local removes = any_forgotten or any_leases or next(letters)
-- @end if
      -- First a write that a server at maxmemory refuses: behind a removal it would let the whole call through.
      if removes then call('HSET', KEYS[1], 'inserted', inserted) end
      if any_forgotten then call('ZREM', KEYS[3], '') end
      if count > 1 or first_written < LAST_SLICE or adds or not field then

-- @include "_$layout.lua" try

      end
-- @if claims
      if any_leases then try_taking() end
      if next(letters) then try_deleting() end
-- @end if
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
  if again then
    call('ZREM', KEYS[3], string.sub(packed, i * 16 - 15, i * 16))
-- @if claims
    if entry then take_out(digest, entry) end
-- @end if
  elseif one_slice and not wrote and age == 0 then
    age = 1 -- tested as it was written
  end
  if age == 0 or wrote then
    added = added + 1
    if age == 0 then
      fresh = fresh + 1
    else
      local number = first_written < LAST_SLICE and missing or age - 1
      moved[number] = (moved[number] or 0) + 1
    end
  end
-- @if claims
  if age == 0 then delete_letter(digest) end -- it was rejected, and has expired since
-- @end if
  ages[i] = age
end

-- An item that was seen now lives on from now, although no bit changed.
if not tried and string.find(policy, '/last-seen', 1, true) then
  call('HSET', KEYS[1], 'written', time_written(written, now))
end
-- @end if

local answers = fresh == count and 0 or added > 0 and ages or nil

-- @include "_count.lua" count

-- @include "_call.lua" record

return recorded or ages
