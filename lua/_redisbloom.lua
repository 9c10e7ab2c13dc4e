-- Layout redisbloom: a slice is a Bloom filter of the server's module RedisBloom, and an item of it is a digest.
-- common, has: no test; the section age of _age.lua tests the items of a call. choose, insert: the items of an insert.
-- test, try, write: lines for one item. unanswered: what the module did not answer.
--
-- The module can fail in the middle of BF.MADD: the reply has the answers so far, then an error, and is cut off. So
-- nothing counts as written that has no number in the reply.

-- @section common
-- Gives: failed (why the module did not answer; nil: it did), UNANSWERED (the answer about an item that it did not
-- answer: the caller asks again under another id); and if KEYS has several segments of a slice, two functions: runs_of,
-- ask_row.
local failed, refused
local UNANSWERED = -2
local runs_of, ask_row
if rows then
  local byte, newest_row = string.byte, rows[LAST_SLICE]
  local times = newest_row.share * 65536 -- half a word of a digest -> the place of its segment in the newest slice

  -- Finds the runs of packed digests that belong to one segment of the newest slice.
  -- Returns where each begins, their segments, and whether these ascend.
  runs_of = function(digests)
    local starts, segments, ascend, runs, first, beyond = {}, {}, true, 0, 0, 0
    for last = 16, #digests, 16 do
      local low, high = byte(digests, last - 1, last)
      local half = high * 256 + low
      if half < first or half >= beyond then -- these are the first of the segment, and of the next: multiples of 16
        ascend = ascend and half >= first
        local place = (half - half % 16) * times
        local segment = place - place % 1
        first, beyond = segment / times, (segment + 1) / times
        first, beyond = first + -first % 16, beyond + -beyond % 16
        runs = runs + 1
        starts[runs], segments[runs] = last / 16, segment
      end
    end
    return starts, segments, ascend
  end

  -- Asks the module about digests in slice n, those of each segment by one command, until it does not answer. They come
  -- in the order of the segments. Other slices than the newest have as many segments, or a half, a quarter and so on: so
  -- theirs have whole runs of digests.
  -- ask: redis.call or redis.pcall. starts, segments: the runs of the digests, if the caller knows them.
  -- Returns the answers, and why there are no more: the first that lacks is nil or an error. (Behind it digests may stand,
  -- because a list that is as long from the beginning takes less time to fill.)
  ask_row = function(ask, command, n, digests, starts, segments)
    if not starts then
      starts, segments = runs_of(table.concat(digests))
    end
    local found, row, run, last = { unpack(digests) }, rows[n], 1, 0
    local share = row.share / newest_row.share
    while segments[run] do
      local first, place = last + 1, segments[run] * share
      local segment = place - place % 1
      repeat
        run = run + 1
      until not segments[run] or segments[run] * share >= segment + 1
      last = (starts[run] or #digests + 1) - 1
      local part = ask(command, row[segment], unpack(digests, first, last))
      for j = first, last do
        found[j] = part[j - first + 1]
      end
      if found[last] ~= 0 and found[last] ~= 1 then return found, part.err end
    end
    return found
  end
end

-- @section has
-- Gives: adds_untested (whether items may be added that are not tested, if those that are tested are absent).
local adds_untested = false

-- @section choose
-- Chooses the items of an insert that are to be added, and tries all commands before the first of them.
-- Needs: call, what age gives, any_forgotten, inserted, and with claims: entries, is_in_flight, any_leases, letters,
-- try_taking, try_deleting.
-- Gives: adding (digests, segment by segment), spots (the place of each; nil: as in all_items), again (digest -> whether
-- it counts as new although a slice may have it: true, or its entry in leases).
local adding, spots, again = absent, places, {}
ages = tested
-- @if no claims
local may_be_again = any_forgotten
-- @end if
-- @if claims
local may_be_again = any_forgotten or any_leases or next(letters)
-- @end if
if may_be_again then
  adding, spots, ages = {}, {}, ages or {}
  for n = 1, count do
    local i = order and order[n] or n
    local digest = all_items[i]
    ages[i] = ages[i] or 0
    if again[digest] then
      ages[i] = 1
-- @if claims
    elseif entries[digest] then -- in flight, or lapsed and so new once more
      ages[i] = is_in_flight(entries[digest]) and -1 or 0
      if ages[i] == 0 then again[digest] = entries[digest] end
-- @end if
    elseif any_forgotten and call('ZSCORE', KEYS[3], digest) then
      ages[i], again[digest] = 0, true
    end
    if ages[i] == 0 then
      adding[#adding + 1], spots[#spots + 1] = digest, i
    end
  end
end

if #adding > 0 then
  -- First a write that a server at maxmemory refuses, because the module does not look at that.
  call('HSET', KEYS[1], 'inserted', inserted)
  refused = try_module('BF.MADD')
  if refused then return refused end
  if any_forgotten then call('ZREM', KEYS[3], '') end
-- @if claims
  if any_leases then try_taking() end
  if next(letters) then try_deleting() end
-- @end if
end

-- @section insert
-- Adds the chosen items to today. An item that comes twice is new once.
-- Needs: call, inserted, timed, written, now, what age, common and choose give, and with claims take_out, delete_letter.
-- Gives: added, fresh (as many: a filter of this layout has no last-seen), moved (none).
local added, fresh, moved = 0, 0, {}
if #adding > 0 then
  if timed then
    call('HSET', KEYS[1], 'inserted', inserted + 1, 'written', time_written(written, now))
  else
    call('HSET', KEYS[1], 'inserted', inserted + 1)
  end
  local found, why
  if rows then
    found, why = ask_row(redis.pcall, 'BF.MADD', LAST_SLICE, adding, adding == absent and starts, segments)
  else
    found = redis.pcall('BF.MADD', KEYS[LAST_SLICE], unpack(adding))
    why = found.err
  end
  -- Nothing was tested: so 1 stands for new until the loop has come there. (Of an order this makes a list of its length.)
  ages = ages or (order and { unpack(order) } or found)
  for j = 1, #adding do
    local was, i = found[j], spots and spots[j] or j
    if was ~= 0 and was ~= 1 then
      failed = why or (was and was.err) or 'BF.MADD gave no answer about an item'
      local lacking = {}
      for left = j, #adding do
        ages[spots and spots[left] or left], lacking[adding[left]] = UNANSWERED, true
      end
      for other = 1, count do
        if again[all_items[other]] and lacking[all_items[other]] then ages[other] = UNANSWERED end
      end
      break
    end
    if may_be_again then
      local digest = adding[j]
      if again[digest] then
        call('ZREM', KEYS[3], digest)
-- @if claims
        if again[digest] ~= true then take_out(digest, again[digest]) end
-- @end if
        was = 1
      end
-- @if claims
      if was == 1 and letters[digest] then delete_letter(digest) end -- it was rejected, and has expired since
-- @end if
    end
    ages[i], added = 1 - was, added + was
  end
  if added == 0 then call('HSET', KEYS[1], 'inserted', inserted) end
  if failed and added == 0 then return refusal_of(failed) end
  fresh = added
end

-- @section test
-- Needs: call, KEYS.
-- Gives: wrote (always true: the module tests the item as it writes it).
wrote = true

-- @section try
refused = try_module('BF.MADD')
if refused then return refused end

-- @section write
-- Needs: digest, and what common and age give.
local found = redis.pcall('BF.MADD', key, digest)
if found[1] == 0 or found[1] == 1 then
  added_now[digest] = true
else
  failed = found.err or (found[1] and found[1].err) or 'BF.MADD gave no answer'
end

-- @section unanswered
-- Needs: call, ages, count, added, inserted, and what common gives.
if failed then
  if added == 0 then
    call('HSET', KEYS[1], 'inserted', inserted)
    return refusal_of(failed)
  end
  for i = #ages + 1, count do
    ages[i] = UNANSWERED
  end
end
