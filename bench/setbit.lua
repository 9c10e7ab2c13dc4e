-- What one would write first: k SETBITs an item, no checks, no record. The reference of bench inserts. With GETBIT in
-- the place of SETBIT it only asks.
local items, m, k = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ages = {}
for i = 1, #items / 16 do
  local d0, d1, d2, d3 = struct.unpack('<I4I4I4I4', items, i * 16 - 15)
  local x = (d0 + 4294967296 * (d1 % 1048576)) % m
  local y = (d2 + 4294967296 * (d3 % 1048576)) % m
  local seen = 1
  for j = 1, k do
    if redis.call('SETBIT', KEYS[1], x, 1) == 0 then seen = 0 end
    x = (x + y) % m
    y = (y + j) % m
  end
  ages[i] = seen
end
return ages
