-- Runs the commands that write an item or test the next one, without effect, so that a refusal comes before the first
-- write.
local function try_writing(slice)
  call('BITFIELD', slice.key, 'GET', 'u1', 0)
  call('BITFIELD_RO', slice.key, 'GET', 'u1', 0)
end

-- Inserts an item; returns true if the slice did not have it. It calls before_writing before it writes a bit.
local function insert(slice, d0, d1, d2, d3)
  local x, y = start(slice, d0, d1, d2, d3)
  if all_set(slice, x, y) then
    return false
  end
  before_writing()
  bitfield('BITFIELD', slice, 'SET', x, y, 1)
  return true
end
