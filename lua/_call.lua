-- Call ids, and the records in the key replies.
-- id: reads the call id, and answers a repeat from its record. record: writes the record of this call.

-- @section id
-- A writing call may have a call id. From the record of the call a repeat gets the same answers.
-- A + behind the id: the caller waits for replicas. So a repeat writes its record again, because WAIT after a call that
-- writes nothing proves nothing. (HDEL of no field lets the call write while the server is out of memory.)
-- A * behind the id: the caller turns the shard if the answer is DUE.
-- A = and 16 hex digits behind that: the digest of the whole request, of which this call has a part, maybe no item. They
-- belong to the items, so that another request under this id is refused.
-- A record is cmsgpack: sequence, time, count, items and the answers (0: all are 0; none: the call changed nothing).
-- Its items are SCOPE, the request, and then the digest of a single item; of several items the SHA-1 of all that.
-- A restore brings back records whose items the bitmaps lack: those of calls that came after the bitmaps were read. So
-- a repeat of a call from before the last restore inserts what it answered as new, unless that was forgotten since.
-- Needs: call, packed, count, SCOPE (all but the items that the answers depend on: max_age, the holder and its lease),
-- repeated (a function that makes the answers of a repeat of those recorded; nil: they are the same), INSERTS (whether
-- the answer 0 means that an item is in the slices now).
-- Gives: field (of the record; nil without a call id), marked (whether the id has a *), changed_nothing (whether this
-- repeats a call that changed nothing), recorded (the answers of a call whose items may be missing; packed and count
-- are then those that were new), remove_old_records (a function: removes records that nobody needs), and for record:
-- sequence, now, items, adds, padding.

local DEADLINE_AHEAD = 2 * 60 * 1000 -- ms; shorter than RECORD_LIFE, so no call can run after its record is removed
-- A hash with a value of over 64 bytes is a hash table. Without one it is a list of up to 512 records, in which finding
-- one takes some microseconds. So the first record of a slot is longer: 64 spaces follow it. They unpack as numbers,
-- which nobody uses.
local PADDING = '                                                                '
local RECORD_LIFE = 10 * 60 * 1000 -- ms

local field, sequence, deadline, now, items, request
local adds, changed_nothing, marked, padding, recorded = false, false, false, '', nil

-- A call that adds a record checks two random ones and removes those that are old, because clients leave theirs behind.
-- Records from the future, written when this server's clock was ahead, are not among the two: they count as made now.
-- They may still be asked for, and would else stay until that time. This comes before the first bit, because a user may
-- lack the right to these commands.
local function remove_old_records()
  local LOOKED_AT, FROM_THE_FUTURE, looked_at = 2, 8, 0
  for _, other in ipairs(adds and call('HRANDFIELD', KEYS[2], FROM_THE_FUTURE) or {}) do
    if looked_at == LOOKED_AT then break end
    local record = call('HGET', KEYS[2], other)
    local behind, last, time = cmsgpack.unpack_limit(record, 2)
    if time > now then
      call('HSET', KEYS[2], other, cmsgpack.pack(last, now) .. string.sub(record, behind + 1))
    else
      looked_at = looked_at + 1
      if now - time > RECORD_LIFE then call('HDEL', KEYS[2], other) end
    end
  end
end

if ARGV[2] ~= '-' then
  local waits, mark
  field, sequence, deadline, waits, mark, request = string.match(
    ARGV[2], '^(%x+/%d+)/(%d+)/(%d+)(%+?)(%*?)(=?%x*)$')
  if not field or #ARGV[2] > 100 or (request ~= '' and #request ~= 17) then
    return redis.error_reply('BADARG a call id is client/slot/sequence/deadline, or -')
  end
  marked = mark == '*'
  local time = call('TIME')
  now, sequence = time[1] * 1000 + time[2] / 1000, tonumber(sequence)
  local raw = SCOPE .. request .. packed
  items = count > 1 and redis.sha1hex(raw) or raw
  local record = call('HGET', KEYS[2], field)
  adds = not record
  if adds then padding = PADDING end
  if record then
    local _, last = cmsgpack.unpack_limit(record, 1)
    if last > sequence then
      return redis.error_reply('OLDCALL a later call of this client and slot has run')
    elseif last == sequence then
      local _, run, old_count, old_items, answers = cmsgpack.unpack(record)
      if old_count ~= count or old_items ~= items then
        return redis.error_reply('BADARG this call id was used for other items')
      end
      if answers == 0 then answers = { string.byte(string.rep('\0', count), 1, count) } end
      if waits == '+' then
        call('HDEL', KEYS[2], '')
        call('HSET', KEYS[2], field, record)
      end
      local restored = INSERTS and answers and tonumber(call('HGET', KEYS[1], 'restored') or nil)
      local lacking = {}
      for i = 1, restored and (run <= restored or run > now) and count or 0 do
        local digest = string.sub(packed, i * 16 - 15, i * 16)
        local forgotten = answers[i] == 0 and call('ZSCORE', KEYS[3], digest)
        if answers[i] == 0 and not (forgotten and forgotten % 1 * 8589934592000 > run) then -- see forgotten_score
          lacking[#lacking + 1] = digest
        end
      end
      if answers and #lacking == 0 then
        return repeated and repeated(answers) or answers
      end
      changed_nothing, recorded = not answers, answers
      if recorded then packed, count = table.concat(lacking), #lacking end
    end
  end
  local ahead = deadline - now
  if not changed_nothing and not recorded and (ahead < 0 or ahead > DEADLINE_AHEAD) then
    return redis.error_reply(string.format(
      'LATECALL %.0f is the time here in ms: the deadline is past, or over two minutes ahead', now))
  end
  if packed == '' and request ~= '' then
    if not changed_nothing then
      remove_old_records()
      call('HSET', KEYS[2], field, cmsgpack.pack(sequence, now, count, items, nil) .. padding)
    end
    return {}
  end
end

-- @section record
-- Writes the record, as the last write of a call. A call that writes bits has checked before that HSET is allowed.
-- Needs: call, answers (nil if the call changed nothing), and what id gives.

if field and not changed_nothing and not recorded then
  call('HSET', KEYS[2], field, cmsgpack.pack(sequence, now, count, items, answers) .. padding)
end
