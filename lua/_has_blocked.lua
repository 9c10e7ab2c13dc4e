-- Returns whether a slice has an item; it stops at the first bit that is not set.
local function has(key, size, d0, d1, d2, d3)
  local start = d0 % size * BLOCK
  local $words = unpack_words('<$I4s', call('GETRANGE', key, start, start + BLOCK - 1))
  local group, bit
  -- @unroll
  group = d$d % 32
  bit = POWER and POWER[group] or 2 ^ group
  if w$i % (bit + bit) < bit then return false end
  d$d = (d$d - group) / 32
  -- @end
  return true
end
