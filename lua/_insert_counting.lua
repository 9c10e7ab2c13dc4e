-- Insert an item; true when it was not in the slice. again: insert it even if it seems to be there.
local function insert(slice, d0, d1, d2, d3, again)
  local offsets, values = counters(slice, true, d0, d1, d2, d3)
  local new = again
  for _, value in ipairs(values) do
    new = new or value == 0
  end
  if new then
    set_counters(slice, offsets, values, 1)
  end
  return new
end
