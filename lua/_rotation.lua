-- The steps of a rotation. Each section makes a function.
-- fence: whether a step may run. older: one_older, the names of slices after a turn. oldest: set_oldest, which notes
-- the oldest epoch.

-- @section fence
-- A step of a rotation runs in one epoch and one phase, and after the turn for one token.
-- Needs: check_identity.
-- Gives: fence.

-- Returns a refusal, or nil and the values of meta that the steps need.
local function fence(uid, epoch, phase, token)
  local values = redis.call('HMGET', KEYS[1], 'uid', 'epoch', 'phase', 'token', 'pieces', 'slices', 'format')
  local meta = {
    uid = values[1], epoch = values[2], phase = values[3], token = values[4], pieces = tonumber(values[5] or nil),
    slices = values[6],
  }
  local refusal = check_identity(meta.uid, values[7], uid)
  if refusal then
    return refusal
  elseif meta.phase == 'dropping' then
    return redis.error_reply('NOFILTER there is no filter here')
  elseif meta.phase == 'restoring' then
    return redis.error_reply('RESTORING the filter is being restored from its archive')
  elseif meta.epoch ~= epoch or meta.phase ~= phase or (token and meta.token ~= token) then
    return redis.error_reply('BADPHASE the shard is in epoch ' .. meta.epoch .. ', ' .. meta.phase)
  end
  return nil, meta
end

-- @section older
-- Makes each slice one older: today becomes history_1, history_1 becomes history_2. (Rolling's history stays.)
-- Gives: one_older, append_row.

-- Appends the keys of all segments of a slice to a list.
local function append_row(keys, first, segments)
  keys[#keys + 1] = first
  for number = 1, segments - 1 do
    keys[#keys + 1] = first .. '.' .. number
  end
end

-- Returns a list of moves {from, to, number of segments}, and of the entries of the slices after the turn, both from
-- oldest to newest.
local function one_older(base, slices)
  local moves, entries = {}, {}
  for name, geometry, segments in string.gmatch(slices, '(%S+)(:%d+:%d+:(%d+))') do
    local number = string.match(name, '^history_(%d+)$')
    local to = name
    if name == 'today' then
      to = 'history_1'
    elseif number then
      to = 'history_' .. number + 1
    end
    moves[#moves + 1], entries[#entries + 1] = { base .. name, base .. to, segments }, to .. geometry
  end
  return moves, entries
end

-- @section oldest
-- Notes the oldest epoch of the live slices, and drops the entries of older ones from closed. (Older forgotten digests
-- do no harm, because their items have expired; the script expire removes them, some at a time.)
local function set_oldest(closed, oldest)
  local kept = {}
  for entry in string.gmatch(closed, '%S+') do
    if tonumber(string.match(entry, '^%d+')) >= oldest then
      kept[#kept + 1] = entry
    end
  end
  redis.call('HSET', KEYS[1], 'closed', table.concat(kept, ' '), 'oldest', oldest)
end
