-- Times by the server's clock, as they are written into the keys of a shard. Each section makes a function.
-- now: now_ms, the time. changed: note_change, which notes the time of a change, for checkpoints. forgotten:
-- forgotten_score, the score of a digest. written: time_written, the time of the last change of today. changed and
-- forgotten need now_ms.

-- @section now
-- Returns the server's time in ms, as text with all digits.
local function now_ms()
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end

-- @section changed
-- Notes a change of slices or forgotten digests, for the next checkpoint. Insertions need no note: they are counted.
local function note_change()
  local last = tonumber(redis.call('HGET', KEYS[1], 'changed') or 0)
  redis.call('HSET', KEYS[1], 'changed', string.format('%.0f', math.max(tonumber(now_ms()), last + 1)))
end

-- @section forgotten
-- Returns the score of a digest that is forgotten now: the epoch, and behind the point the time in units of 2^-33 per
-- second. In the first thousand epochs the time is right to 2 ms.
local function forgotten_score(epoch)
  return string.format('%.17g', epoch + now_ms() / 1000 / 8589934592)
end

-- @section written
-- Returns the time to note as that of the last change of today, server ms; never an earlier one than was noted before.
-- If that lies far in the future, this server's clock was ahead or is behind, and nothing tells when today was written
-- to: then a time is noted that no clock reaches, until the shard turns. It counts as now: late, never early.
-- before: the field written, or a false value; clock_ms: server ms now, or nil.
local function time_written(before, clock_ms)
  local UNKNOWN, TOLERANCE = '999999999999999', 60000 -- ms
  if not clock_ms then
    local time = redis.call('TIME')
    clock_ms = time[1] * 1000 + time[2] / 1000
  end
  if before and tonumber(before) > clock_ms + TOLERANCE then return UNKNOWN end
  return string.format('%.0f', math.max(math.ceil(clock_ms), before or 0))
end
