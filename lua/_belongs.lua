-- Checks that each item is of this shard: the top 12 bits of its digest's last word decide.
-- Needs: packed, shard, shards.

if shards ~= '1' then
  local byte, all, this = string.byte, tonumber(shards), tonumber(shard)
  for last = 16, #packed, 16 do
    local low, high = byte(packed, last - 1, last)
    if (high * 16 + (low - low % 16) / 16) % all ~= this then
      return redis.error_reply('BADARG item ' .. last / 16 .. ' does not belong to shard ' .. shard)
    end
  end
end
