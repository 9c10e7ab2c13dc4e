-- drop: remove one shard of a filter. "begin" on shard 0 first, so that a drop that dies half-way is seen; then
-- "delete" on every shard, shard 0 last.
--
-- KEYS[1] meta
-- KEYS[2] replies
-- KEYS[3] forgotten
-- KEYS[4…] slices: all that may exist
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
elseif step == 'delete' then
  return redis.call('UNLINK', unpack(KEYS))
end
return redis.error_reply('BADARG drop takes: begin or delete, uid')
