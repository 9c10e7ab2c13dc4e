-- Inserts one item into a blocked bitmap of k = 12, and does nothing else that this library's script does: no meta, no
-- call id, no shards. It is the measure for the overhead of a call with one item.
--
-- KEYS[1] bitmap, allocated in full
-- ARGV[1] digest: 16 bytes
-- ARGV[2] units: the number of blocks
--
-- Reply: 1 = new, and now inserted; 0 = seen.

local POWER = {
  [0] = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288,
  1048576, 2097152, 4194304, 8388608, 16777216, 33554432, 67108864, 134217728, 268435456, 536870912, 1073741824,
  2147483648,
}
local d0, d1, d2, d3 = struct.unpack('<I4I4I4I4', ARGV[1])
local start = d0 % ARGV[2] * 48
local w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12 =
  struct.unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', redis.call('GETRANGE', KEYS[1], start, start + 47))
local new = false
local group, bit

group = d1 % 32; bit = POWER[group]; d1 = (d1 - group) / 32
if w1 % (bit + bit) < bit then w1 = w1 + bit; new = true end
group = d1 % 32; bit = POWER[group]; d1 = (d1 - group) / 32
if w2 % (bit + bit) < bit then w2 = w2 + bit; new = true end
group = d1 % 32; bit = POWER[group]; d1 = (d1 - group) / 32
if w3 % (bit + bit) < bit then w3 = w3 + bit; new = true end
group = d1 % 32; bit = POWER[group]; d1 = (d1 - group) / 32
if w4 % (bit + bit) < bit then w4 = w4 + bit; new = true end
group = d1 % 32; bit = POWER[group]; d1 = (d1 - group) / 32
if w5 % (bit + bit) < bit then w5 = w5 + bit; new = true end
group = d1 % 32; bit = POWER[group]; d1 = (d1 - group) / 32
if w6 % (bit + bit) < bit then w6 = w6 + bit; new = true end
group = d2 % 32; bit = POWER[group]; d2 = (d2 - group) / 32
if w7 % (bit + bit) < bit then w7 = w7 + bit; new = true end
group = d2 % 32; bit = POWER[group]; d2 = (d2 - group) / 32
if w8 % (bit + bit) < bit then w8 = w8 + bit; new = true end
group = d2 % 32; bit = POWER[group]; d2 = (d2 - group) / 32
if w9 % (bit + bit) < bit then w9 = w9 + bit; new = true end
group = d2 % 32; bit = POWER[group]; d2 = (d2 - group) / 32
if w10 % (bit + bit) < bit then w10 = w10 + bit; new = true end
group = d2 % 32; bit = POWER[group]; d2 = (d2 - group) / 32
if w11 % (bit + bit) < bit then w11 = w11 + bit; new = true end
group = d2 % 32; bit = POWER[group]; d2 = (d2 - group) / 32
if w12 % (bit + bit) < bit then w12 = w12 + bit; new = true end

if not new then return 0 end
redis.call('SETRANGE', KEYS[1], start,
  struct.pack('<I4I4I4I4I4I4I4I4I4I4I4I4', w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12))
return 1
