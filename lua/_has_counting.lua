-- Returns whether a slice has an item.
local function has(key, m, d0, d1, d2, d3)
  return counters(key, m, false, d0, d1, d2, d3) ~= nil
end
