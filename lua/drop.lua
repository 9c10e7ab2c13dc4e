-- drop: remove one shard of a filter.
-- First "begin" puts it into phase dropping: nothing writes to it any more, and a drop that dies half-way is noticed.
-- Then "delete" removes its keys, a few at a time because a bitmap takes 1 ms, and meta last. Shard 0 begins first and
-- goes last. A shard with another identity than expected is left alone.
--
-- KEYS[1] meta
-- KEYS[2…] keys: delete: the keys to remove, which may include meta; else merging_1, which exists only within scripts
--
-- ARGV[1] step: begin; abandon (begin, but only if the filter is still being made, so no client uses it); or delete
-- ARGV[2] identity: uid, timeline and restorer of meta as it was read, with / between; empty if there was no meta. The
--   uid is not enough: a filter that is restored after a drop has the uid of the dropped one
-- ARGV[3] archive: begin: 1 if the drop removes the archive too, else 0; a process that finishes the drop reads it
--
-- Reply: begin, abandon: the present meta, an array of field and value in turn; empty if the identity is another, or
--   (abandon) the filter is made. delete: how many keys were removed; -1 if the identity is another. Without meta the
--   keys are leftovers and are removed.
-- Errors: FORMAT, BADARG

-- @include "_shard.lua" keys

local meta_key = KEYS[1]
local step, identity, archive = ARGV[1], ARGV[2], ARGV[3]
local refusal = check_keys({}, '')
if refusal then return refusal end
local found = redis.call('HMGET', meta_key, 'uid', 'timeline', 'restorer', 'phase', 'format')
local now = found[1] and table.concat({ found[1], found[2] or '', found[3] or '' }, '/') or ''

if found[5] ~= '1' and string.find(found[5] or '', '^%d+$') then -- a shard whose format is damaged can be dropped
  return redis.error_reply('FORMAT the shard is of format ' .. found[5]
    .. ', and this release reads format 1: use the release that wrote it')
end

if (step == 'begin' or step == 'abandon') and #KEYS > 1 then
  if now == '' or now ~= identity or (step == 'abandon' and found[4] ~= 'creating') then return {} end
  -- UNLINK has no effect here. It comes first because a user may lack the right to it, which delete needs; and because
  -- a server at maxmemory accepts all writes of a script whose first write needs no memory.
  redis.call('UNLINK', KEYS[2])
  redis.call('HSET', meta_key, 'phase', 'dropping', 'archive_goes', archive)
  return redis.call('HGETALL', meta_key)
elseif step == 'delete' and #KEYS > 1 then
  if now ~= '' and now ~= identity then return -1 end
  return redis.call('UNLINK', unpack(KEYS, 2))
end
return redis.error_reply('BADARG drop takes: begin, abandon or delete, identity, archive')
