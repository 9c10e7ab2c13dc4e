-- Returns whether a slice has an item.
local function has(slice, d0, d1, d2, d3)
  return counters(slice, false, d0, d1, d2, d3) ~= nil
end
