-- A call that adds a record checks two random ones and removes those that are old, because clients leave theirs behind.
-- Those from the future, when this server's clock was ahead, are not among the two: they count as made now. They may still
-- be asked for, and would else stay until that time. It comes before the first bit, because a user may lack the right to
-- these commands.
-- Needs: adds, now.

local LOOKED_AT, FROM_THE_FUTURE = 2, 8
local looked_at = 0
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
