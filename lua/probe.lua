-- probe: find the commands of the scripts that this user may not run, by trying each where it has no effect. (ACL
-- DRYRUN would tell, but needs rights of its own, and Redis 6.2 does not have it.)
--
-- KEYS[1] merging 1: a key of a shard that exists only while another script runs, so it is absent here
--
-- ARGV[1] word: always list
--
-- Reply: an array of the names of the commands that were refused.
-- Errors: BADARG

local key, refused = KEYS[1], {}
if ARGV[1] ~= 'list' or not string.find(key, ':merging_1$') then
  return redis.error_reply('BADARG probe takes the word list, and the key merging_1 of a shard')
end

local TRIED = {
  { 'BITCOUNT', key }, { 'BITFIELD', key, 'GET', 'u1', 0 }, { 'BITFIELD_RO', key, 'GET', 'u1', 0 },
  { 'BITOP', 'OR', key, key }, { 'DEL', key }, { 'EXISTS', key }, { 'GET', key }, { 'GETBIT', key, 0 },
  { 'GETRANGE', key, 0, 0 }, { 'HDEL', key, '' }, { 'HGET', key, '' }, { 'HGETALL', key }, { 'HMGET', key, '' },
  { 'HRANDFIELD', key, 2 }, { 'HSET', key, '', '', 'no value' }, { 'RENAME', key, key }, { 'SET', key, '', 'XX' },
  { 'SETRANGE', key, 0, '' }, { 'STRLEN', key }, { 'TIME' }, { 'UNLINK', key }, { 'ZADD', key, 'XX', 0, '' },
  { 'ZLEXCOUNT', key, '-', '+' }, { 'ZRANDMEMBER', key, 2 }, { 'ZRANGEBYLEX', key, '-', '+' },
  { 'ZRANGEBYSCORE', key, 0, 0 }, { 'ZREM', key, '' }, { 'ZREVRANGE', key, 0, 0 }, { 'ZSCORE', key, '' },
}
for _, command in ipairs(TRIED) do
  local reply = redis.pcall(unpack(command))
  local text = type(reply) == 'table' and reply.err or ''
  if string.find(text, "can't run this command", 1, true) or string.find(text, 'ACL failure', 1, true) then
    refused[#refused + 1] = command[1]
  end
end
return refused
