-- Returns whether a slice has an item.
local function has(slice, d0, d1, d2, d3)
  return all_set(slice, start(slice, d0, d1, d2, d3))
end
