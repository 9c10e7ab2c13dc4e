-- Counts the items of a call. With last-seen, inserted counts an item in each slice in which it was seen. The field new
-- of today, and the last number of each closed slice, count it once: in the newest slice that has it. (Rolling does not
-- know in which slice of history an item is. It counts there, and build counts anew whenever it makes a history.)
-- Needs: call, added, habits, inserted, fresh (how many items were new), moved (how many were seen before in each closed slice,
-- the newest being 1).

if added > 0 and string.find(habits, '/last-seen', 1, true) then
  local new, closed = unpack(call('HMGET', KEYS[1], 'new', 'closed'))
  local ring = string.find(habits, '^ring')
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
