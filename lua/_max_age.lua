-- Needs: max_age, retention.

if max_age ~= 0 and retention ~= 'ring' then
  return redis.error_reply('BADARG max_age is 0 for every retention but ring')
end
