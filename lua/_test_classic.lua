-- Tests an item in one slice. Gives: wrote (whether a bit is missing), and x and y for _write_classic.
-- Needs: key, size, d0, d1, d2, d3.
local x, y = start(size, d0, d1, d2, d3)
wrote = not all_set(key, size, x, y)
