-- A call that adds a record checks two random ones and removes those that are old, because clients leave theirs behind.
-- It comes before the first bit, because a user may lack the right to these commands.
-- Needs: adds, now.

if adds then
  for _, other in ipairs(call('HRANDFIELD', KEYS[2], 2)) do
    local _, _, time = cmsgpack.unpack_limit(call('HGET', KEYS[2], other), 2)
    if now - time > RECORD_LIFE then
      call('HDEL', KEYS[2], other)
    end
  end
end
