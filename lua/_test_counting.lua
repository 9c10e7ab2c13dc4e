-- Tests an item. Gives: wrote (whether a counter is 0), and offsets and counts for _write_counting. A forgotten item is
-- still in the slice, so its counters stay.
-- Needs: key, size, d0, d1, d2, d3.
local offsets, counts = counters(key, size, true, d0, d1, d2, d3)
wrote = false
for _, value in ipairs(counts) do
  wrote = wrote or value == 0
end
