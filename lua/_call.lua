-- The call id of a writing call, and its record. From the record a repeat of the call gets the same answers.
-- A record is cmsgpack: sequence, time, count and SHA-1 of the items, and the answers. A call that changed nothing has
-- a short record, without the answers.

local DEADLINE_AHEAD = 2 * 60 * 1000 -- ms; shorter than RECORD_LIFE, so no call can run after its record is removed
local RECORD_LIFE = 10 * 60 * 1000 -- ms

local function server_time()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- Returns a call: with answers if it has a full record, with changed_nothing if it has a short one, else with neither.
-- Returns nil and a refusal if the call may not run.
local function open_call(id, packed)
  if id == '-' then
    return { id = id }
  end
  local client, slot, sequence, deadline = string.match(id, '^(%x+)/(%d+)/(%d+)/(%d+)$')
  if not client or #id > 80 then
    return nil, redis.error_reply('BADARG a call id is client/slot/sequence/deadline, or -')
  end
  local call = {
    id = id, field = client .. '/' .. slot, sequence = tonumber(sequence), now = server_time(),
    count = #packed / 16, items = redis.sha1hex(ARGV[3] .. packed), -- with max_age, because answers depend on it
  }
  local record = redis.call('HGET', KEYS[2], call.field)
  call.adds = not record
  if record then
    local recorded, _, count, items, answers = cmsgpack.unpack(record)
    if recorded > call.sequence then
      return nil, redis.error_reply('OLDCALL a later call of this client and slot has run')
    elseif recorded == call.sequence then
      if count ~= call.count or items ~= call.items then
        return nil, redis.error_reply('BADARG this call id was used for other items')
      end
      call.answers = answers
      call.changed_nothing = not answers
      return call
    end
  end
  local ahead = tonumber(deadline) - call.now
  if ahead < 0 or ahead > DEADLINE_AHEAD then
    return nil, redis.error_reply(string.format(
      'LATECALL %.0f is the time here in ms: the deadline is past, or over two minutes ahead', call.now))
  end
  return call
end

-- A call that adds a record checks two random ones and removes those that are old, because clients leave theirs behind.
local function remove_old_records(call)
  if call.adds then
    for _, field in ipairs(redis.call('HRANDFIELD', KEYS[2], 2)) do
      local _, _, time = cmsgpack.unpack_limit(redis.call('HGET', KEYS[2], field), 2)
      if call.now - time > RECORD_LIFE then
        redis.call('HDEL', KEYS[2], field)
      end
    end
    call.adds = false
  end
end

-- Writes the record, as the last write of a call. A call that writes bits has checked before that HSET is allowed.
-- answers: nil if the call changed nothing.
local function record_call(call, answers)
  if call.id == '-' then
    return
  end
  remove_old_records(call)
  local record = cmsgpack.pack(call.sequence, call.now, call.count, call.items)
  if answers then
    record = record .. cmsgpack.pack(answers)
  end
  redis.call('HSET', KEYS[2], call.field, record)
end
