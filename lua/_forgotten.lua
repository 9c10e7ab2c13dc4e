-- The score of what is forgotten now: the epoch and, behind the point, the time in seconds, 2^-33 each (to 2 ms in
-- the first thousand epochs).
local function forgotten_score(epoch)
  return string.format('%.17g', epoch + now_ms() / 1000 / 8589934592)
end
