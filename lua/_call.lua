-- The call id of a writing call, and its record, from which a repeat of the call gets the same answers. Behind a + the
-- caller waits for replicas: a repeat writes its record again, because WAIT after a call that writes nothing proves
-- nothing. (HDEL of no field lets the call write while the server is out of memory.) A record is
-- cmsgpack: sequence, time, count, items and the answers; without the answers if the call changed nothing. Items are
-- the digest of a single item, or the SHA-1 of several; SCOPE stands before: all else that the answers depend on
-- (max_age; the holder and its lease).
-- Needs: packed, count, SCOPE, repeated (makes the answers of a repeat of those recorded; nil: they are the same).
-- Gives: field (nil without a call id), changed_nothing (this repeats a call that changed nothing), and for _old_records
-- and _record: sequence, now, items, adds, padding.

local DEADLINE_AHEAD = 2 * 60 * 1000 -- ms; shorter than RECORD_LIFE, so no call can run after its record is removed
-- A hash with a value of over 64 bytes is a hash table. Without one it is a list of up to 512 records, in which finding
-- one takes some microseconds. So the first record of a slot is longer: it has 64 numbers more, which nobody reads.
local PADDING = '                                                                '
local RECORD_LIFE = 10 * 60 * 1000 -- ms

local field, sequence, deadline, now, items
local adds, changed_nothing, padding = false, false, ''
if ARGV[2] ~= '-' then
  local waits
  field, sequence, deadline, waits = string.match(ARGV[2], '^(%x+/%d+)/(%d+)/(%d+)(%+?)$')
  if not field or #ARGV[2] > 80 then
    return redis.error_reply('BADARG a call id is client/slot/sequence/deadline, or -')
  end
  local time = call('TIME')
  now, sequence = time[1] * 1000 + time[2] / 1000, tonumber(sequence)
  local raw = SCOPE .. packed
  items = count > 1 and redis.sha1hex(raw) or raw
  local record = call('HGET', KEYS[2], field)
  adds = not record
  if adds then padding = PADDING end
  if record then
    local _, recorded = cmsgpack.unpack_limit(record, 1)
    if recorded > sequence then
      return redis.error_reply('OLDCALL a later call of this client and slot has run')
    elseif recorded == sequence then
      local _, _, old_count, old_items, answers = cmsgpack.unpack(record)
      if old_count ~= count or old_items ~= items then
        return redis.error_reply('BADARG this call id was used for other items')
      end
      if waits == '+' then
        call('HDEL', KEYS[2], '')
        call('HSET', KEYS[2], field, record)
      end
      if answers then
        return repeated and repeated(answers) or answers
      end
      changed_nothing = true
    end
  end
  local ahead = deadline - now
  if not changed_nothing and (ahead < 0 or ahead > DEADLINE_AHEAD) then
    return redis.error_reply(string.format(
      'LATECALL %.0f is the time here in ms: the deadline is past, or over two minutes ahead', now))
  end
end
