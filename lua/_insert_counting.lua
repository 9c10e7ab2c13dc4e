-- Insert an item; true when it was not in the slice. One that was forgotten is still in it, and counts once.
local function insert(slice, d0, d1, d2, d3)
  local offsets, values = counters(slice, true, d0, d1, d2, d3)
  local new = false
  for _, value in ipairs(values) do
    new = new or value == 0
  end
  if new then
    set_counters(slice, offsets, values, 1)
  end
  return new
end
