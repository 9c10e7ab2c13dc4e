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
