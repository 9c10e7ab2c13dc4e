-- The commands that write, and those that the next item may need first, without effect.
local function try_writing(slice)
  call('BITFIELD', slice.key, 'GET', 'u1', 0)
  call('BITFIELD_RO', slice.key, 'GET', 'u1', 0)
end

-- Insert an item; true when it was not in the slice. Before the first bit is written, before_writing is called.
local function insert(slice, d0, d1, d2, d3)
  local x, y = start(slice, d0, d1, d2, d3)
  if all_set(slice, x, y) then
    return false
  end
  before_writing()
  bitfield('BITFIELD', slice, 'SET', x, y, 1)
  return true
end
