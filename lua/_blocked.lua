-- Layout blocked: an item sets one bit in each of the k 32-bit words of one block.
-- common: what the other sections need. has: a function that looks for an item in a slice. test, try, write: lines for
-- one item and one slice; try calls the commands of write without effect.

-- @section common
-- The loader (urifilter_redis/protocol/scripts.py) specialises this layout for one k: the k words are locals, and the
-- lines between "unroll" and "end" are repeated for each word. A word is a double from 0 to 2^32 - 1, and a bit is its
-- power of two. The bit is set if w % (bit + bit) >= bit. Reading a power from the table is faster than computing it,
-- but making the table takes as long as computing a hundred powers.
-- Needs: call, packed.
-- Gives: POWER, BLOCK, unpack_words.

local POWER = #packed > 64 and {
  [0] = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288,
  1048576, 2097152, 4194304, 8388608, 16777216, 33554432, 67108864, 134217728, 268435456, 536870912, 1073741824,
  2147483648,
}
local BLOCK = 4 * $k -- bytes
local unpack_words = struct.unpack

-- @section has
-- Needs: call, and what common gives.
-- Gives: has.
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

-- @section test
-- Tests an item in one slice.
-- Needs: key, size, d0, d1, d2, d3 (which it uses up), wrote, and what common gives.
-- Gives: wrote (whether a bit is missing), and for write: start, and the words with all bits.
local start = d0 % size * BLOCK
local $words = unpack_words('<$I4s', call('GETRANGE', key, start, start + BLOCK - 1))
local group, bit
wrote = false
-- @unroll
group = d$d % 32
bit = POWER and POWER[group] or 2 ^ group
d$d = (d$d - group) / 32
if w$i % (bit + bit) < bit then
  w$i = w$i + bit
  wrote = true
end
-- @end

-- @section try
call('SETRANGE', key, 0, '')

-- @section write
call('SETRANGE', key, start, struct.pack('<$I4s', $words))
