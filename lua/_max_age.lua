-- Needs: max_age, habits.

if max_age ~= 0 and not string.find(habits, '^ring') then
  return redis.error_reply('BADARG max_age is 0 for every retention but ring')
end
