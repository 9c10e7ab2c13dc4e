-- Insert an item; true when it was not in the slice.
local function insert(slice, d0, d1, d2, d3)
  local x, y = start(slice, d0, d1, d2, d3)
  if all_set(slice, x, y) then
    return false
  end
  bitfield('BITFIELD', slice, 'SET', x, y, 1)
  return true
end
