-- Refuses a marked call, before any write, if this shard should have gone forward by more than one epoch: what the call
-- writes would make that one, because today cannot close before it was last written to. So the caller turns it first,
-- and before that finishes a turn that was left.
-- Needs: marked, now, changed_nothing, phase, values (of meta), habits.
-- Gives: timed (whether slices close by time), written.

local timed, opened, written, period = string.byte(habits) == 114, values[8], values[9], values[10] -- r: ring, rolling
if marked and timed and opened and period and (phase == 'idle' or phase == 'rotating') and not changed_nothing
  and now >= math.max(opened + period, written or 0) + period then
  return redis.error_reply('DUE a period was missed: the shard must turn first')
end
