-- Layout classic: an item sets k bits, anywhere in m bits.
-- common: what the other sections need. has: a function that looks for an item in a slice. test, try, write: lines for
-- one item and one slice; try calls the commands of write without effect.

-- @section common
-- The k offsets follow from two numbers x and y, by enhanced double hashing (Dillinger and Manolios 2004).
-- All sums stay under 2^53, so a double holds them exactly. Products would not, so there are none.
-- Needs: call, K.
-- Gives: bitfield, start, all_set.

-- Calls BITFIELD or BITFIELD_RO with "GET u1 x" or "SET u1 x 1" for each of the k offsets x.
local function bitfield(command, key, m, operation, x, y, value)
  local arguments, n = { command, key }, 2
  for i = 1, K do
    arguments[n + 1], arguments[n + 2], arguments[n + 3], arguments[n + 4] = operation, 'u1', x, value
    n = n + (value and 4 or 3)
    x = (x + y) % m
    y = (y + i) % m
  end
  return call(unpack(arguments))
end

-- Returns the x and y of an item.
local function start(m, d0, d1, d2, d3)
  return (d0 + 4294967296 * (d1 % 1048576)) % m, (d2 + 4294967296 * (d3 % 1048576)) % m
end

-- Returns whether all bits of an item are set.
local function all_set(key, m, x, y)
  if call('GETBIT', key, x) == 0 then -- most new items end here
    return false
  end
  for _, bit in ipairs(bitfield('BITFIELD_RO', key, m, 'GET', x, y)) do
    if bit == 0 then return false end
  end
  return true
end

-- @section has
-- Needs: what common gives.
-- Gives: has.
-- Returns whether a slice has an item.
local function has(key, m, d0, d1, d2, d3)
  return all_set(key, m, start(m, d0, d1, d2, d3))
end

-- @section test
-- Tests an item in one slice.
-- Needs: key, size, d0, d1, d2, d3, wrote, and what common gives.
-- Gives: wrote (whether a bit is missing), and for write: x, y.
local x, y = start(size, d0, d1, d2, d3)
wrote = not all_set(key, size, x, y)

-- @section try
call('BITFIELD', key, 'GET', 'u1', 0)
call('BITFIELD_RO', key, 'GET', 'u1', 0)

-- @section write
bitfield('BITFIELD', key, size, 'SET', x, y, 1)
