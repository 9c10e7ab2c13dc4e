-- Returns the score of a digest that is forgotten now: the epoch, and behind the point the time in units of 2^-33 per
-- second. In the first thousand epochs the time is right to 2 ms.
local function forgotten_score(epoch)
  return string.format('%.17g', epoch + now_ms() / 1000 / 8589934592)
end
