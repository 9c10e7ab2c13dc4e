-- The dead letters: what is kept of items that were rejected.
-- read: reads those of the items of a call. delete: functions that take them out.

-- @section read
-- Reads the dead letters of the items of a call, before its first write.
-- A dead letter is the time (server ms, a double), failures and lapses (16 bits each, all little-endian), the length of
-- the reason (a byte), the reason, and what is kept of the item. The field bytes has the bytes of all letters and
-- digests.
-- Needs: call, packed, count, DEAD_LETTERS, DEAD_LETTERS_AT.
-- Gives: letters (digest -> dead letter; a false value: it has none), letter_bytes.

local letters, letter_bytes = {}, 0
if call('EXISTS', DEAD_LETTERS_AT) == 1 then
  local asked = { 'bytes' }
  for i = 1, count do
    asked[i + 1] = string.sub(packed, i * 16 - 15, i * 16)
  end
  local found = call('HMGET', DEAD_LETTERS, unpack(asked))
  letter_bytes = tonumber(found[1] or 0)
  for i = 2, #asked do
    letters[asked[i]] = found[i]
  end
end

-- @section delete
-- Needs: call, DEAD_LETTERS, DEAD_LETTERS_AT, and what read gives.
-- Gives: try_deleting, delete_letter.

-- A user may lack the right to a command: so all are tried before the first write of a call.
local function try_deleting()
  call('HDEL', DEAD_LETTERS, '')
  call('ZREM', DEAD_LETTERS_AT, '')
end

-- Takes out the dead letter of an item; returns how many there were, 0 or 1.
local function delete_letter(digest)
  local letter = letters[digest]
  if not letter then return 0 end
  letters[digest] = nil
  letter_bytes = letter_bytes - #letter - #digest
  call('HDEL', DEAD_LETTERS, digest)
  call('ZREM', DEAD_LETTERS_AT, digest)
  call('HSET', DEAD_LETTERS, 'bytes', string.format('%.0f', letter_bytes))
  return 1
end
