-- Checks that each item is of this shard: the top 12 bits of its digest's last word decide.
-- Needs: packed, place.

if place ~= '0/1' then
  local byte, shard, shards = string.byte, string.match(place, '^(%d+)/(%d+)$')
  local this, all = tonumber(shard), tonumber(shards)
  for last = 16, #packed, 16 do
    local low, high = byte(packed, last - 1, last)
    if (high * 16 + (low - low % 16) / 16) % all ~= this then
      return redis.error_reply('BADARG item ' .. last / 16 .. ' does not belong to shard ' .. shard)
    end
  end
end
