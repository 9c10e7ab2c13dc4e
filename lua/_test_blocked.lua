-- Tests an item in one slice. Gives: wrote (whether a bit is missing), and the words with all bits for _write_blocked.
-- Needs: key, size, d0, d1, d2, d3, which it uses up.
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
