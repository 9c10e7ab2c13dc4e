-- The beginning of the scripts about items: it reads ARGV and checks the filter.
-- Returns a job {meta, packed, count, slices, today, tested, call}; or nil and the reply that ends the script: a
-- refusal, or the recorded answers of the call id.

local FIRST_ITEM = 5

-- opener: open_call of _call.lua; nil for a script that writes nothing.
local function begin(first_slice, opener)
  local base = string.sub(KEYS[1], 1, -1 - #'meta') -- not by check_keys, which is slower: a call may have one item
  if KEYS[1] ~= base .. 'meta' or opener and KEYS[2] ~= base .. 'replies'
    or KEYS[first_slice - 1] ~= base .. 'forgotten' then
    return nil, redis.error_reply('BADARG the first keys are those of the header, and all are of one shard')
  end
  local uid, call_id, max_age, encoding = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
  local job = {}
  local refusal
  job.packed, refusal = read_digests(encoding, FIRST_ITEM)
  if not job.packed then return nil, refusal end
  job.count = #job.packed / 16
  if not max_age or max_age < 0 or max_age % 1 ~= 0 then
    return nil, redis.error_reply('BADARG max_age is a whole number, 0 for any age')
  end
  if not opener and call_id ~= '-' then return nil, redis.error_reply('BADARG the call id is - here') end

  job.meta, refusal = read_meta(uid, first_slice)
  if not job.meta then return nil, refusal end
  if max_age ~= 0 and job.meta.retention ~= 'ring' then
    return nil, redis.error_reply('BADARG max_age is 0 for every retention but ring')
  end
  if opener then
    job.call, refusal = opener(call_id, job.packed)
    if not job.call then return nil, refusal end
    if job.call.answers then return nil, job.call.answers end
  end
  job.slices, refusal = live_slices(job.meta, first_slice)
  if not job.slices then return nil, refusal end
  job.today = job.slices[#job.slices]
  job.tested = tested_slices(job.meta, job.slices, max_age)
  refusal = check_shard(job.meta, job.packed)
  if refusal then return nil, refusal end
  return job
end
