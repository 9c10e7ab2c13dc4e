-- The items of a call: digests of 16 bytes, packed one after the other.

local MAX_ITEMS = 500 -- keeps one call under 15 ms on a slow server

-- Returns the digests of a call, packed; or nil and a refusal. With encoding 'bin' ARGV[first] has all of them, packed;
-- with 'hex' each argument from ARGV[first] on has one, as 32 hex digits.
local function read_digests(encoding, first)
  local packed
  if encoding == 'bin' and #ARGV == first then
    packed = ARGV[first]
  elseif encoding == 'hex' then
    for i = first, #ARGV do
      if #ARGV[i] ~= 32 or string.find(ARGV[i], '%X') then
        return nil, redis.error_reply('BADARG item ' .. i - first + 1 .. ' is not 32 hex digits')
      end
    end
    packed = string.gsub(table.concat(ARGV, '', first), '%x%x', function(pair)
      return string.char(tonumber(pair, 16))
    end)
  else
    return nil, redis.error_reply('BADARG encoding is bin with one argument of items, or hex with one an item')
  end
  if #packed == 0 or #packed % 16 ~= 0 or #packed > 16 * MAX_ITEMS then
    return nil, redis.error_reply('BADARG items are 1 to ' .. MAX_ITEMS .. ' digests of 16 bytes')
  end
  return packed
end

-- Returns a refusal if an item is of another shard: the top 12 bits of its digest's last word decide.
local function check_shard(meta, packed)
  if meta.shards == 1 then
    return nil
  end
  local byte, shards, shard = string.byte, meta.shards, meta.shard
  for last = 16, #packed, 16 do
    local low, high = byte(packed, last - 1, last)
    if (high * 16 + (low - low % 16) / 16) % shards ~= shard then
      return redis.error_reply('BADARG item ' .. last / 16 .. ' does not belong to shard ' .. shard)
    end
  end
end
