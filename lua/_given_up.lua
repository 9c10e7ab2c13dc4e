-- The notes about items that were given up.
-- read: reads those of the items of a call. delete: functions that take notes out.

-- @section read
-- Reads the notes of the items of a call, before its first write.
-- A note is the time (server ms, a double), failures and lapses (16 bits each, all little-endian), the length of the
-- reason (a byte), the reason, and what is kept of the item. The field bytes has the bytes of all notes and digests.
-- Needs: call, packed, count, GIVEN_UP, GIVEN_UP_AT.
-- Gives: notes (digest -> note; a false value: it has none), note_bytes.

local notes, note_bytes = {}, 0
if call('EXISTS', GIVEN_UP_AT) == 1 then
  local asked = { 'bytes' }
  for i = 1, count do
    asked[i + 1] = string.sub(packed, i * 16 - 15, i * 16)
  end
  local found = call('HMGET', GIVEN_UP, unpack(asked))
  note_bytes = tonumber(found[1] or 0)
  for i = 2, #asked do
    notes[asked[i]] = found[i]
  end
end

-- @section delete
-- Needs: call, GIVEN_UP, GIVEN_UP_AT, and what read gives.
-- Gives: try_noting, delete_note.

-- A user may lack the right to a command: so all are tried before the first write of a call.
local function try_noting()
  call('HDEL', GIVEN_UP, '')
  call('ZREM', GIVEN_UP_AT, '')
end

-- Takes out the note of an item; returns how many there were, 0 or 1.
local function delete_note(digest)
  local note = notes[digest]
  if not note then return 0 end
  notes[digest] = nil
  note_bytes = note_bytes - #note - #digest
  call('HDEL', GIVEN_UP, digest)
  call('ZREM', GIVEN_UP_AT, digest)
  call('HSET', GIVEN_UP, 'bytes', string.format('%.0f', note_bytes))
  return 1
end
