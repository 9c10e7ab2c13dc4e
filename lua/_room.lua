-- Checks that today of a growing filter has room for the new items of a call. They are counted only if there may be too
-- little room.
-- Needs: packed, count, habits, inserted, changed_nothing, any_forgotten, age_in; with claims: entries, is_in_hand, FINAL (whether the call
-- makes items final that are in hand).

if habits == 'growing/-/-' and not changed_nothing then
  local limit = call('HGET', KEYS[1], 'limit')
  local room, counted = limit - inserted, {}
  local function is_new(digest)
-- @if claims
    if entries[digest] then return FINAL or not is_in_hand(entries[digest]) end
-- @end if
    return age_in(unpack_digest('<I4I4I4I4', digest)) == 0 or any_forgotten and call('ZSCORE', KEYS[3], digest)
  end
  for i = 1, room < count and count or 0 do
    local digest = string.sub(packed, i * 16 - 15, i * 16)
    if not counted[digest] and is_new(digest) then room = room - 1 end
    counted[digest] = true
  end
  if room < 0 then
    return redis.error_reply('FULL today is for ' .. limit .. ' items: the next slice must be made')
  end
end
