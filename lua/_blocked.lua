-- Layout blocked: an item sets one bit in each of the k 32-bit words of one block.
-- The loader (urifilter_redis/protocol/scripts.py) specialises the files of this layout for one k: the k words are
-- locals, and the lines between "unroll" and "end" are repeated for each word. A word is a double from 0 to 2^32 - 1,
-- and a bit is its power of two. The bit is set if w % (bit + bit) >= bit. The table is faster, but it takes as long to
-- make as a hundred powers.

local POWER = #packed > 64 and {
  [0] = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288,
  1048576, 2097152, 4194304, 8388608, 16777216, 33554432, 67108864, 134217728, 268435456, 536870912, 1073741824,
  2147483648,
}
local BLOCK = 4 * $k -- bytes
local unpack_words = struct.unpack
