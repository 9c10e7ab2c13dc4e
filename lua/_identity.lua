-- Returns a refusal if meta is missing, of another filter, or of a format that this script does not work on.
local function check_identity(found, format, wanted)
  if not found then
    return redis.error_reply('NOFILTER there is no filter here')
  elseif found ~= wanted then
    return redis.error_reply('MISMATCH the filter was dropped and created anew')
  elseif format ~= '1' then
    return redis.error_reply('FORMAT the shard is of format ' .. (format or 'none')
      .. ', and this release reads format 1: use the release that wrote it')
  end
end
