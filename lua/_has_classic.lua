-- Returns whether a slice has an item.
local function has(key, m, d0, d1, d2, d3)
  return all_set(key, m, start(m, d0, d1, d2, d3))
end
