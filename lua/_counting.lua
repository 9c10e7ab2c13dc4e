-- Layout counting: an item counts up to k counters of 4 bits, so that it can be removed.
-- common: what the other sections need. has: a function that looks for an item in a slice. test, try, write: lines for
-- one item and one slice; try calls the commands of write without effect.

-- @section common
-- An item has the distinct offsets of layout classic. A counter that reaches 15 stays there.
-- All sums stay under 2^53, so a double holds them exactly. Products would not, so there are none.
-- Needs: call, K.
-- Gives: counters, set_counters.

local STUCK = 15
-- Returns the distinct offsets of an item and their counters. If a counter is 0, it returns nil, unless every is true.
local function counters(key, m, every, d0, d1, d2, d3)
  local x, y = (d0 + 4294967296 * (d1 % 1048576)) % m, (d2 + 4294967296 * (d3 % 1048576)) % m
  if not every and call('BITFIELD_RO', key, 'GET', 'u4', 4 * x)[1] == 0 then -- most new items end here
    return nil
  end
  local offsets, taken, arguments, n = {}, {}, { 'BITFIELD_RO', key }, 2
  for i = 1, K do
    if not taken[x] then
      taken[x] = true
      offsets[#offsets + 1] = x
      arguments[n + 1], arguments[n + 2], arguments[n + 3] = 'GET', 'u4', 4 * x
      n = n + 3
    end
    x = (x + y) % m
    y = (y + i) % m
  end
  local counts = call(unpack(arguments))
  for i = 1, every and 0 or #counts do
    if counts[i] == 0 then return nil end
  end
  return offsets, counts
end

-- Calls BITFIELD to change the counters of an item.
local function set_counters(command, key, offsets, counts, change)
  local arguments = { command, key }
  for i, offset in ipairs(offsets) do
    if counts[i] ~= STUCK then
      local n = #arguments
      arguments[n + 1], arguments[n + 2], arguments[n + 3], arguments[n + 4] =
        'SET', 'u4', 4 * offset, counts[i] + change
    end
  end
  if #arguments > 2 then
    call(unpack(arguments))
  end
end

-- @section has
-- Needs: what common gives.
-- Gives: has.
-- Returns whether a slice has an item.
local function has(key, m, d0, d1, d2, d3)
  return counters(key, m, false, d0, d1, d2, d3) ~= nil
end

-- @section test
-- Tests an item in one slice. A forgotten item is still in the slice, so its counters stay.
-- Needs: key, size, d0, d1, d2, d3, wrote, and what common gives.
-- Gives: wrote (whether a counter is 0), and for write: offsets, counts.
local offsets, counts = counters(key, size, true, d0, d1, d2, d3)
wrote = false
for _, value in ipairs(counts) do
  wrote = wrote or value == 0
end

-- @section try
call('BITFIELD', key, 'GET', 'u4', 0)

-- @section write
set_counters('BITFIELD', key, offsets, counts, 1)
