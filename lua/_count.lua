-- The number of items in a slice.
-- room: whether a growing filter has room for those of a call. count: notes those of a call.

-- @section room
-- Refuses a call if today of a growing filter has no room for its new items. They are counted only if there may be too
-- little room. These lines come before the first write.
-- Needs: call, unpack_digest, packed, count, policy, inserted, changed_nothing, any_forgotten, age_in; with claims:
-- entries, is_in_flight, FINAL (whether the call makes items final that are in flight).

if policy == 'growing/-/-' and not changed_nothing then
  local limit = call('HGET', KEYS[1], 'limit')
  local room, counted = limit - inserted, {}
  local function is_new(digest)
-- @if claims
    if entries[digest] then return FINAL or not is_in_flight(entries[digest]) end
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

-- @section count
-- Counts the items of a call. With last-seen, inserted counts an item in each slice in which it was seen. The field new
-- of today, and the last number of each closed slice, count it once: in the newest slice that has it. (Rolling does not
-- know in which slice of history an item is. It counts there, and build counts anew whenever it makes a history.)
-- Needs: call, added, policy, inserted, fresh (how many items were new), moved (how many were seen before in each
-- closed slice, the newest being 1).

if added > 0 and string.find(policy, '/last-seen', 1, true) then
  local new, closed = unpack(call('HMGET', KEYS[1], 'new', 'closed'))
  local ring = string.find(policy, '^ring')
  if ring then fresh = added end
  call('HSET', KEYS[1], 'inserted', inserted + added, 'new', (new or inserted) + fresh)
  if ring and next(moved) then
    local _, number = string.gsub(closed, '%S+', '')
    closed = string.gsub(closed, '(%S+:)(%d+)', function(head, before)
      local gone = moved[number]
      number = number - 1
      return gone and head .. math.max(0, before - gone)
    end)
    call('HSET', KEYS[1], 'closed', closed)
  end
elseif added > 1 then -- one was counted before its first bit
  call('HSET', KEYS[1], 'inserted', inserted + added)
end
