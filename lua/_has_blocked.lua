-- Returns whether a slice has an item; it stops at the first bit that is not set.
local function has(slice, d0, d1, d2, d3)
  local start = d0 % slice.units * BLOCK
  local $words = unpack_words('<$I4s', call('GETRANGE', slice.key, start, start + BLOCK - 1))
  local bit
  -- @unroll
  bit = POWER[d$d % 32]
  if w$i % (bit + bit) < bit then return false end
  d$d = (d$d - d$d % 32) / 32
  -- @end
  return true
end
