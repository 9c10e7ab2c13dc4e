-- drop: remove one shard of a filter: "begin" first, so that a drop that dies half-way is seen; then "delete" for its
-- keys, a few at a time because bitmaps are freed at once (1 ms each), and last for meta. Shard 0 goes last.
--
-- KEYS[1] meta
-- KEYS[2…] keys: delete: to be removed, meta among them or not
--
-- ARGV[1] step: begin or delete
-- ARGV[2] uid: of the filter
--
-- Reply: begin: 1 if the filter was there, else 0; delete: how many keys were removed.
-- Errors: MISMATCH, BADARG

local meta_key = KEYS[1]
local step, uid = ARGV[1], ARGV[2]
local existing = redis.call('HGET', meta_key, 'uid')

if existing and existing ~= uid then
  return redis.error_reply('MISMATCH the filter was dropped and created anew')
end
if step == 'begin' then
  if not existing then return 0 end
  redis.call('HSET', meta_key, 'phase', 'dropping')
  return 1
elseif step == 'delete' and #KEYS > 1 then
  return redis.call('UNLINK', unpack(KEYS, 2))
end
return redis.error_reply('BADARG drop takes: begin or delete, uid')
