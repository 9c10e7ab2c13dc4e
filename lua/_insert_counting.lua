-- The command that writes, without effect.
local function try_writing(slice)
  call('BITFIELD', slice.key, 'GET', 'u4', 0)
end

-- Insert an item; true when it was not in the slice. One that was forgotten is still in it, and counts once. Before
-- the first counter is written, before_writing is called.
local function insert(slice, d0, d1, d2, d3)
  local offsets, values = counters(slice, true, d0, d1, d2, d3)
  local new = false
  for _, value in ipairs(values) do
    new = new or value == 0
  end
  if new then
    before_writing()
    set_counters(slice, offsets, values, 1)
  end
  return new
end
