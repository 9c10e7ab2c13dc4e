-- Whether the live slices are whole.
-- live: for scripts that name all of them as keys. lengths: a function for the others, check_slices.

-- @section live
-- Checks that KEYS has the live slices, from oldest to newest, and that they are whole; and that the script is made for
-- a shard with claims if the shard has them. (The scripts claim and commit are made for every shard.)
-- A slice is a row of segments: today, today.1, today.2 and so on, which have equally many units. Of T segments of the
-- whole filter an item belongs to segment floor(x T / 4096), x being the top 12 bits of its digest's last word, and
-- those of a shard are neighbours. KEYS has of each slice the segments that its items belong to, in ascending order.
-- Needs: call, base, phase, listed, FIRST_SLICE, shard_of, longest, CLAIMS (1: for shards with claims, 0: without, 2:
-- for both).
-- Gives: LAST_SLICE (slices are numbered from FIRST_SLICE to it, from oldest to newest), units (the number of a slice ->
-- the units of a segment: blocks, bits, counters or items), rows (the number of a slice -> its segments: number -> key,
-- gaps: whether one between others is not named, and share: how many segments all shards have, by 2^32; nil: KEYS has
-- one segment of each slice, and its number is that of its key), segment_of (a function: slice, d3 -> key), all_named
-- (whether KEYS has all segments of all slices).

if phase == 'restoring' then
  return redis.error_reply('RESTORING the filter is being restored from its archive')
end
local units, at, LAST_SLICE, all_named, rows, segment_of = {}, 1, #KEYS, true
if string.sub(listed, -2) ~= ':1' then -- of a growing filter the newest slice has the most segments
  local match, LAST_KEY = string.match, #KEYS
  local shard, shards = match(shard_of, '^(%d+)/(%d+)$')
  rows, LAST_SLICE = {}, FIRST_SLICE - 1
  segment_of = function(n, d3)
    local row = rows[n]
    local place = (d3 - d3 % 1048576) * row.share
    return row[place - place % 1]
  end
  local i = FIRST_SLICE
  while i <= LAST_KEY do
    local name, size, bytes, segments, after = match(listed, '^([^:]+):(%d+):(%d+):(%d+) ?()', at)
    local first, row, last, named = base .. (name or ''), { share = shards * (segments or 1) / 4294967296 }, -1, i
    local dotted, before, most = first .. '.', shard * (segments or 1), tonumber(segments)
-- @if no redisbloom
    local wanted = tonumber(bytes)
-- @end if
    while name and i <= LAST_KEY do
      local key, segment = KEYS[i], 0
      if key ~= first then
        segment = match(key, '^[1-9]%d*$', #dotted + 1)
        if not segment or dotted .. segment ~= key then break end
        segment = segment + 0 -- a number, faster than by tonumber
      end
      if segment <= last or segment >= most then
        return redis.error_reply('BADARG ' .. key .. ' is no segment, or not behind the one before')
      end
-- @if no redisbloom
      local length = call('STRLEN', key)
      if length ~= wanted then
        return redis.error_reply('LOST ' .. key .. ' has ' .. length .. ' bytes and should have ' .. bytes)
      end
-- @end if
-- @if redisbloom
      if not is_reserved(key, tonumber(size)) then
        return redis.error_reply('LOST ' .. key .. ' is missing, or is no Bloom filter for ' .. size .. ' items')
      end
-- @end if
      if last >= 0 and segment > last + 1 then row.gaps = true end
      row[before + segment], last, i = key, segment, i + 1
    end
    if last < 0 then
      at = 0
      break
    end
    LAST_SLICE, at, all_named = LAST_SLICE + 1, after, all_named and i - named == most
    units[LAST_SLICE], rows[LAST_SLICE] = tonumber(size), row
  end
else
  for i = FIRST_SLICE, #KEYS do
    local name, size, bytes, after = string.match(listed, '^([^:]+):(%d+):(%d+):1 ?()', at)
    if not name or KEYS[i] ~= base .. name then
      at = 0
      break
    end
-- @if no redisbloom
    local length = call('STRLEN', KEYS[i])
    if length ~= tonumber(bytes) then
      return redis.error_reply('LOST ' .. KEYS[i] .. ' has ' .. length .. ' bytes and should have ' .. bytes)
    end
-- @end if
-- @if redisbloom
    if not is_reserved(KEYS[i], tonumber(size)) then
      return redis.error_reply('LOST ' .. KEYS[i] .. ' is missing, or is no Bloom filter for ' .. size .. ' items')
    end
-- @end if
    units[i], at = tonumber(size), after
  end
end
if at <= #listed or (CLAIMS ~= 2 and (longest ~= false) ~= (CLAIMS == 1)) then
  local state = call('HMGET', KEYS[1], 'epoch', 'opened')
  local claims = longest and math.max(tonumber(longest) or 1, 1) or 0 -- with claims never 0, even if edited by hand
  return redis.error_reply('STALE epoch ' .. state[1] .. ', opened ' .. state[2] .. ', claims ' .. claims
    .. ', live slices ' .. listed)
end

-- @section lengths
-- Returns a refusal if a live slice is missing, or its length is not as in meta.
local function check_slices(slices)
  local base = string.sub(KEYS[1], 1, -1 - #'meta')
-- @if no redisbloom
  for name, bytes, segments in string.gmatch(slices, '(%S+):%d+:(%d+):(%d+)') do
-- @end if
-- @if redisbloom
  for name, items, segments in string.gmatch(slices, '(%S+):(%d+):%d+:(%d+)') do
-- @end if
    for number = 0, segments - 1 do
      local key = base .. name .. (number > 0 and '.' .. number or '')
-- @if no redisbloom
      if redis.call('STRLEN', key) ~= tonumber(bytes) then
        return redis.error_reply('LOST ' .. key .. ' is missing or has another length')
      end
-- @end if
-- @if redisbloom
      if not is_reserved(key, tonumber(items)) then
        return redis.error_reply('LOST ' .. key .. ' is missing, or is no Bloom filter for ' .. items .. ' items')
      end
-- @end if
    end
  end
end
