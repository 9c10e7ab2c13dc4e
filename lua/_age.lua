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
-- Needs: units, max_age, policy, FIRST_SLICE, has; age_in and oldest_age as empty locals.
-- Gives: age_in (a function), oldest_age (the highest answer).

local newest, oldest = #KEYS, FIRST_SLICE
if max_age > 0 and max_age <= newest - oldest then oldest = newest - max_age + 1 end
if string.find(policy, '/all/', 1, true) then newest = oldest end
oldest_age = newest - oldest + 1
if string.find(policy, '^rolling') and oldest_age > 2 then oldest_age = 2 end

age_in = function(d0, d1, d2, d3)
  for i = newest, oldest, -1 do
    if has(KEYS[i], units[i], d0, d1, d2, d3) then
      local age = newest - i + 1
      return age < oldest_age and age or oldest_age
    end
  end
  return 0
end
