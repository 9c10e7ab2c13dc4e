-- The age of items.
-- max_age: checks the argument. age: a function that asks the slices.

-- @section max_age
-- Checks that only a ring is asked for an age.
-- Needs: max_age, policy.

if max_age ~= 0 and not string.find(policy, '^ring') then
  return redis.error_reply('BADARG max_age is 0 for every retention but ring')
end

-- @section age
-- The age of an item: 0 = in no tested slice; n = in the n-th newest (rolling: 2 = in any older one). In a ring with
-- write=all the max_age-th newest slice has every item of the last max_age periods: only that one is tested; age 1.
-- Needs: units, rows, segment_of, max_age, policy, FIRST_SLICE, LAST_SLICE, has; age_in and oldest_age as empty locals.
-- Gives: age_in (a function), oldest_age (the highest answer).

local newest, oldest = LAST_SLICE, FIRST_SLICE
if max_age > 0 and max_age <= newest - oldest then oldest = newest - max_age + 1 end
if string.find(policy, '/all/', 1, true) then newest = oldest end
oldest_age = newest - oldest + 1
if string.find(policy, '^rolling') and oldest_age > 2 then oldest_age = 2 end
-- @if no redisbloom

age_in = function(d0, d1, d2, d3)
  for i = newest, oldest, -1 do
    if has(rows and segment_of(i, d3) or KEYS[i], units[i], d0, d1, d2, d3) then
      local age = newest - i + 1
      return age < oldest_age and age or oldest_age
    end
  end
  return 0
end
-- @end if
-- @if redisbloom

-- All items of a call are tested at once: in each slice those that no newer one has. So an item that is written later
-- in the call must be noted in added_now.
-- Needs as well: packed, adds_untested, runs_of, ask_row.
-- Gives as well: all_items, tested (the age of each; nil: the only slice has none of the first few, and all count as
-- absent), order (the places of all items, segment by segment; nil: they come in that order, as clients send them),
-- absent (the digests of age 0, segment by segment), places (of these; nil: as in all_items), starts and segments (the
-- runs of these, see runs_of; starts is nil where they are not known).
local FEW, added_now, tested, age_of, order, places = 8, {}, nil, nil, nil, nil
local all_items = { struct.unpack(string.rep('c16', count), packed) }
all_items[count + 1] = nil -- the place behind the last item
local absent, starts, segments = all_items, nil, nil
if rows then
  local ascend
  starts, segments, ascend = runs_of(packed)
  if not ascend then
    order, absent = {}, {}
    local segment_at = {}
    for run = 1, #starts do
      for i = starts[run], (starts[run + 1] or count + 1) - 1 do
        order[i], segment_at[i] = i, segments[run]
      end
    end
    table.sort(order, function(one, other)
      local difference = segment_at[one] - segment_at[other]
      return difference < 0 or difference == 0 and one < other
    end)
    for spot = 1, count do
      absent[spot] = all_items[order[spot]]
    end
    starts, places = nil, order
  end
end
if adds_untested and count > 4 * FEW then
  for _, found in ipairs(rows and ask_row(call, 'BF.MEXISTS', newest, { unpack(absent, 1, FEW) })
    or call('BF.MEXISTS', KEYS[newest], unpack(absent, 1, FEW))) do
    if found ~= 0 then adds_untested = false end
  end
else
  adds_untested = false
end
for n = adds_untested and oldest - 1 or newest, oldest, -1 do
  local found = rows and ask_row(call, 'BF.MEXISTS', n, absent, starts, segments)
    or call('BF.MEXISTS', KEYS[n], unpack(absent))
  local left, spots, last = {}, {}, 0
  tested = tested or (order and { unpack(order) } or found) -- of the newest slice 1 is the age, too
  for j = 1, #absent do
    local was = found[j]
    if was == 1 then
      if n < newest or order then tested[places and places[j] or j] = newest - n + 1 end
    elseif was == 0 then
      last = last + 1
      left[last], spots[last] = absent[j], places and places[j] or j
      if order then tested[spots[last]] = 0 end
    else
      return redis.error_reply('MODULE BF.MEXISTS gave no answer about an item')
    end
  end
  if last < #absent then absent, places, starts = left, spots, nil end
  if last == 0 then break end
end

age_in = function(d0, d1, d2, d3)
  local digest = struct.pack('<I4I4I4I4', d0, d1, d2, d3)
  if not age_of then
    age_of = {}
    for i = 1, count do
      age_of[all_items[i]] = tested and tested[i] or 0
    end
  end
  return added_now[digest] and 1 or age_of[digest]
end
-- @end if
