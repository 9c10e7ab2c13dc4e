-- Returns whether today of a growing filter has room for the new items of a call. The new items are counted only if
-- there may be too little room.
local function has_room(job, any_forgotten)
  local room = job.meta.limit and job.meta.limit - job.meta.inserted
  if not room or room >= job.count then
    return true
  end
  local counted = {}
  for i = 1, job.count do
    local digest = string.sub(job.packed, i * 16 - 15, i * 16)
    if not counted[digest] and (age_in(job.tested, struct.unpack('<I4I4I4I4', digest)) == 0
      or any_forgotten and redis.call('ZSCORE', KEYS[3], digest)) then
      room = room - 1
    end
    counted[digest] = true
  end
  return room >= 0
end
