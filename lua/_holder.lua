-- Reads the holder and the lease of a call. Every call of a holder is a beat: it lives for a lease more.
-- Needs: ARGV[HOLDER] (16 hex digits, or - for none), ARGV[HOLDER + 1] (ms).
-- Gives: own (its 8 bytes; nil: none), lease, from_hex, last_of (the end of the range of a holder's hands),
-- MOST_DELAY.

local MOST_LEASE, MOST_DELAY = 60 * 60 * 1000, 10 * 60 * 1000 -- ms, of a lease and of a release
local own, lease

local function from_hex(text)
  return (string.gsub(text, '%x%x', function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

local function last_of(holder)
  return '(' .. holder .. string.rep('\255', 17)
end

if ARGV[HOLDER] ~= '-' then
  lease = tonumber(ARGV[HOLDER + 1])
  if not string.find(ARGV[HOLDER] or '', '^' .. string.rep('%x', 16) .. '$') or string.sub(ARGV[HOLDER], 1, 2) == '00' then
    return redis.error_reply('BADARG a holder is 16 hex digits that do not begin with 00')
  elseif not lease or lease < 1 or lease > MOST_LEASE or lease % 1 ~= 0 then
    return redis.error_reply('BADARG a lease is 1 to ' .. MOST_LEASE .. ' ms')
  end
  own = from_hex(ARGV[HOLDER])
end
