-- contains: test items without inserting them.
-- It writes nothing, so a replica can answer it.
--
-- KEYS[1] meta
-- KEYS[2] forgotten
-- @if no claims
-- KEYS[3…] slices: of the live slices, from oldest to newest, the segments of the items
-- @end if
-- @if claims
-- KEYS[3] leases
-- KEYS[4] holders
-- KEYS[5…] slices: of the live slices, from oldest to newest, the segments of the items
-- @end if
--
-- ARGV[1] uid: the filter's uid
-- ARGV[2] call id: always -, because nothing is recorded
-- ARGV[3] max_age: ring: test only this many of the newest slices, or 0 for all; every other retention: 0
-- ARGV[4] encoding: bin (all digests packed in one argument) or hex (32 hex digits an argument)
-- ARGV[5…] items: at most 500 digests, all of this shard
--
-- Reply: an array with the age of each item: 0 = not seen; n = seen, in the n-th newest slice (rolling: 2 = in any
-- older slice; ring with write=all: 1 = seen); -1 = in flight (see claim).
-- @if no redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, RESTORING, BADARG
-- @end if
-- @if redisbloom
-- Errors: NOFILTER, MISMATCH, FORMAT, LOST, STALE, RESTORING, MODULE, BADARG
-- @end if

local call = redis.call
local uid, base, CLAIMS = ARGV[1], string.sub(KEYS[1], 1, -1 - #'meta'), $claims
local FIRST_ITEM, LAST_ITEM = 5, #ARGV
-- @if no claims
local FIRST_SLICE, NAMES = 3, { 'meta', 'forgotten' }
-- @end if
-- @if claims
local FIRST_SLICE, NAMES = 5, { 'meta', 'forgotten', 'leases', 'holders' }
local LEASES, HOLDERS = KEYS[3], KEYS[4]
-- @end if

-- @include "_items.lua" read
-- @include "_shard.lua" identity meta
-- @include "_age.lua" max_age
-- @include "_slices.lua" live
-- @include "_items.lua" shard
-- @include "_$layout.lua" common has

local age_in, oldest_age

-- @include "_age.lua" age
-- @if claims

-- @include "_leases.lua" entries

-- @end if

if ARGV[2] ~= '-' then return redis.error_reply('BADARG the call id is - here') end
local any_forgotten, unpack_digest = changed and call('EXISTS', KEYS[2]) == 1, struct.unpack
-- @if no redisbloom
local ages = {}
for i = 1, count do
  ages[i] = age_in(unpack_digest('<I4I4I4I4', packed, i * 16 - 15))
-- @end if
-- @if redisbloom
local ages = tested
for i = 1, (any_forgotten or CLAIMS == 1) and count or 0 do
-- @end if
  if any_forgotten and ages[i] > 0 and call('ZSCORE', KEYS[2], string.sub(packed, i * 16 - 15, i * 16)) then
    ages[i] = 0
  end
-- @if claims
  local entry = entries[string.sub(packed, i * 16 - 15, i * 16)]
  if entry then ages[i] = is_in_flight(entry) and -1 or 0 end
-- @end if
end
return ages
