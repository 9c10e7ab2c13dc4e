-- drop: remove one shard of a filter: "begin" first, so that a drop that dies half-way is seen and nothing writes to
-- the shard any more; then "delete" for its keys, a few at a time because bitmaps are freed at once (1 ms each), and
-- last for meta. Shard 0 begins first and goes last. Nothing is done to a shard of which something else was read.
--
-- KEYS[1] meta
-- KEYS[2…] keys: delete: to be removed, meta among them or not; else merging_1, which is there only while a script runs
--
-- ARGV[1] step: begin; abandon: begin if the filter is still being made, so that nobody has it yet; or delete
-- ARGV[2] identity: uid, timeline and restorer as meta was seen to have them, with / between; empty if it had no uid.
--   A filter that was brought back from its archive has the uid of the one that was dropped
-- ARGV[3] archive: begin: 1 if what the archive has goes too, else 0; whoever ends this drop does the same
--
-- Reply: begin and abandon: meta as it is now, an array of field and value in turn, empty if it is another's, gone, or
--   (abandon) made; delete: how many keys were removed, -1 if meta is another's. Without meta keys are leftovers.
-- Errors: BADARG

-- @include "_keys.lua"

local meta_key = KEYS[1]
local step, identity, archive = ARGV[1], ARGV[2], ARGV[3]
local refusal = check_keys({}, '')
if refusal then return refusal end
local found = redis.call('HMGET', meta_key, 'uid', 'timeline', 'restorer', 'phase')
local now = found[1] and table.concat({ found[1], found[2] or '', found[3] or '' }, '/') or ''

if (step == 'begin' or step == 'abandon') and #KEYS > 1 then
  if now == '' or now ~= identity or (step == 'abandon' and found[4] ~= 'creating') then return {} end
  -- First the right to what comes later is tried; and a server at maxmemory lets a script write on whose first write
  -- needs no memory.
  redis.call('UNLINK', KEYS[2])
  redis.call('HSET', meta_key, 'phase', 'dropping', 'archive_goes', archive)
  return redis.call('HGETALL', meta_key)
elseif step == 'delete' and #KEYS > 1 then
  if now ~= '' and now ~= identity then return -1 end
  return redis.call('UNLINK', unpack(KEYS, 2))
end
return redis.error_reply('BADARG drop takes: begin, abandon or delete, identity, archive')
