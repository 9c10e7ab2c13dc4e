-- Writes the record, as the last write of a call. A call that writes bits has checked before that HSET is allowed.
-- Needs: answers (nil if the call changed nothing), and the locals of _call.

if field and not changed_nothing and not recorded then
  call('HSET', KEYS[2], field, cmsgpack.pack(sequence, now, count, items, answers) .. padding)
end
