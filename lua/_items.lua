-- The items of a call.
-- read: reads their digests. shard: checks that all are of this shard, and of the segments that are named.

-- @section read
-- Checks the first keys, and reads the items of a call: digests of 16 bytes, packed one after the other. Encoding bin:
-- ARGV[FIRST_ITEM] has all of them, packed; hex: each argument up to ARGV[LAST_ITEM] has one, as 32 hex digits.
-- Needs: base, NAMES (of the first keys), FIRST_ITEM, LAST_ITEM.
-- Gives: packed, count, max_age.

local MAX_ITEMS = 500 -- keeps one call under 15 ms on a slow server

for i = 1, #NAMES do
  if KEYS[i] ~= base .. NAMES[i] then
    return redis.error_reply('BADARG the first keys are those of the header, and all are of one shard')
  end
end
local packed, max_age = ARGV[FIRST_ITEM], tonumber(ARGV[3])
if ARGV[4] == 'hex' then
  for i = FIRST_ITEM, LAST_ITEM do
    if #ARGV[i] ~= 32 or string.find(ARGV[i], '%X') then
      return redis.error_reply('BADARG item ' .. i - FIRST_ITEM + 1 .. ' is not 32 hex digits')
    end
  end
  packed = string.gsub(table.concat(ARGV, '', FIRST_ITEM, LAST_ITEM), '%x%x', function(pair)
    return string.char(tonumber(pair, 16))
  end)
elseif ARGV[4] ~= 'bin' or FIRST_ITEM ~= LAST_ITEM then
  return redis.error_reply('BADARG encoding is bin with one argument of items, or hex with one an item')
end
local count = #packed / 16
if count % 1 ~= 0 or count > MAX_ITEMS or (count == 0 and not string.find(ARGV[2], '=', 1, true)) then
  return redis.error_reply('BADARG items are 1 to ' .. MAX_ITEMS .. ' digests of 16 bytes')
elseif not max_age or max_age < 0 or max_age % 1 ~= 0 then
  return redis.error_reply('BADARG max_age is a whole number, 0 for any age')
end

-- @section shard
-- Checks that each item is of this shard: of S shards it is floor(x S / 4096), x being the top 12 bits of the digest's
-- last word; and that KEYS has its segment of each slice. The least and the greatest x stand for all between them,
-- unless KEYS leaves out a segment that is between others. If KEYS has one segment of each slice, rows is nil then.
-- Needs: packed, shard_of, all_named, rows, segment_of, FIRST_SLICE, LAST_SLICE.

if shard_of ~= '0/1' or not all_named then
  local byte, least, most, lowest, highest = string.byte, 65536, -1
  for last = 16, #packed, 16 do
    local low, high = byte(packed, last - 1, last)
    local half = high * 256 + low
    if half < least then least, lowest = half, last end
    if half > most then most, highest = half, last end
  end
  least, most = (least - least % 16) / 16, (most - most % 16) / 16
  local shard, shards = string.match(shard_of, '^(%d+)/(%d+)$')
  local below, above = least * shards < shard * 4096, most * shards >= (shard + 1) * 4096
  if below or above then
    local stranger = (below and lowest or highest) / 16
    return redis.error_reply('BADARG item ' .. stranger .. ' does not belong to shard ' .. shard)
  end
  for n = FIRST_SLICE, all_named and 0 or LAST_SLICE do
    local missing = not segment_of(n, least * 1048576) and lowest or not segment_of(n, most * 1048576) and highest
    local row, times = rows[n], rows[n].share * 65536 -- as segment_of, which takes longer for each item
    for last = 16, row.gaps and #packed or 0, 16 do
      local low, high = byte(packed, last - 1, last)
      local place = (high * 256 + low - low % 16) * times
      if not row[place - place % 1] then missing = missing or last end
    end
    if missing then
      return redis.error_reply('BADARG the segment of item ' .. missing / 16 .. ' is not among the keys')
    end
  end
  if LAST_SLICE == #KEYS then rows = nil end
end
