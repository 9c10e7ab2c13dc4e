-- probe: find the commands and the functions of Lua that the scripts need and do not have here.
-- A command may be refused to this user, or unknown to the server. Each command is tried where it has no effect. (ACL
-- DRYRUN would tell, but needs rights of its own, and Redis 6.2 does not have it.)
--
-- KEYS[1] merging 1: a key of a shard that exists only while another script runs, so it is absent here
--
-- ARGV[1] word: always list
--
-- Reply: an array of three arrays of names: the refused commands, the unknown commands, the missing functions of Lua.
-- Errors: BADARG

local key, refused, unknown, missing = KEYS[1], {}, {}, {}
if ARGV[1] ~= 'list' or not string.find(key, ':merging_1$') then
  return redis.error_reply('BADARG probe takes the word list, and the key merging_1 of a shard')
end

-- @if redisbloom
-- BF.MADD is refused on a key that is no filter. A crawler has the rights to make one, and to remove it by its field.
local TRIED = {
  { 'BF.INFO', key, 'CAPACITY' }, { 'BF.MADD', key }, { 'BF.MEXISTS', key, '' }, { 'BF.RESERVE', key, 2, 1 },
}
-- @end if
-- @if no redisbloom
local TRIED = {
  { 'BITCOUNT', key }, { 'BITFIELD', key, 'GET', 'u1', 0 }, { 'BITFIELD_RO', key, 'GET', 'u1', 0 },
  { 'BITOP', 'OR', key, key }, { 'DEL', key }, { 'EXISTS', key }, { 'GET', key }, { 'GETBIT', key, 0 },
  { 'GETRANGE', key, 0, 0 }, { 'HDEL', key, '' }, { 'HGET', key, '' }, { 'HGETALL', key }, { 'HMGET', key, '' },
  { 'HRANDFIELD', key, 2 }, { 'HSET', key, '', '', 'no value' }, { 'PEXPIRE', key, 1 }, { 'RENAME', key, key }, { 'SET', key, '', 'XX' },
  { 'SETRANGE', key, 0, '' }, { 'STRLEN', key }, { 'TIME' }, { 'UNLINK', key }, { 'ZADD', key, 'XX', 0, '' },
  { 'ZLEXCOUNT', key, '-', '+' }, { 'ZRANDMEMBER', key, 2 }, { 'ZRANGE', key, 0, 0 },
  { 'ZRANGEBYLEX', key, '-', '+' }, { 'ZRANGEBYSCORE', key, 0, 0 }, { 'ZREM', key, '' }, { 'ZREVRANGE', key, 0, 0 },
  { 'ZSCORE', key, '' },
}
-- @end if
-- Each function is called, because one that is missing fails only then. The last two are differences between versions
-- of Lua: in newer ones unpack is a function of table, and 4 / 2 reads as 2.0.
local NEEDED = {
  { 'cmsgpack.pack', function() return cmsgpack.pack(1, 'a') == '\1\161a' end },
  { 'cmsgpack.unpack', function() return select(2, cmsgpack.unpack('\1\161a')) == 'a' end },
  { 'cmsgpack.unpack_limit', function() return select(2, cmsgpack.unpack_limit('\1\161a', 1)) == 1 end },
  { 'redis.error_reply', function() return redis.error_reply('BADARG').err ~= nil end },
  { 'redis.sha1hex', function() return redis.sha1hex('') == 'da39a3ee5e6b4b0d3255bfef95601890afd80709' end },
  { 'struct.pack', function() return struct.pack('<I2I4', 1, 2) == '\1\0\2\0\0\0' end },
  { 'struct.unpack', function() return select(2, struct.unpack('<I2I4', '\1\0\2\0\0\0')) == 2 end },
  { 'unpack', function() return unpack({ 1 }) == 1 end },
  { 'numbers of Lua 5.1', function() return 4 / 2 .. '' == '2' end },
}

for _, command in ipairs(TRIED) do
  local reply = redis.pcall(unpack(command))
  local text = type(reply) == 'table' and tostring(reply.err or '') or ''
-- @if redisbloom
  -- A newer module declares how many arguments it takes, so the server does not come to look at rights.
  if command[1] == 'BF.MADD' and string.find(text, 'Wrong number of args', 1, true) then
    local made = redis.pcall('HSET', key, '', '')
    text = made == 1 and redis.pcall('BF.MADD', key, '').err or ''
    if made == 1 then redis.pcall('HDEL', key, '') end
  end
-- @end if
  if string.find(text, "can't run this command", 1, true) or string.find(text, 'ACL failure', 1, true) then
    refused[#refused + 1] = command[1]
  elseif string.find(text, '[Uu]nknown .*command') then
    unknown[#unknown + 1] = command[1]
-- @if redisbloom
  elseif command[3] and string.find(text, 'wrong number of arguments', 1, true) then -- an old release of the module
    unknown[#unknown + 1] = command[1] .. ' with ' .. command[3]
-- @end if
  end
end
for _, needed in ipairs(NEEDED) do
  local called, works = pcall(needed[2])
  if not (called and works) then
    missing[#missing + 1] = needed[1]
  end
end
return { refused, unknown, missing }
