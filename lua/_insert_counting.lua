-- Runs the command that writes an item, without effect, so that a refusal comes before the first write.
local function try_writing(slice)
  call('BITFIELD', slice.key, 'GET', 'u4', 0)
end

-- Inserts an item; returns true if the slice did not have it. A forgotten item is still in the slice, so its counters
-- stay. It calls before_writing before it writes a counter.
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
