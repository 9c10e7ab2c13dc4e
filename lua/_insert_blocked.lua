-- Runs the command that writes an item, without effect, so that a refusal comes before the first write.
local function try_writing(slice)
  call('SETRANGE', slice.key, 0, '')
end

-- Inserts an item; returns true if the slice did not have it. It calls before_writing before it writes a bit.
local function insert(slice, d0, d1, d2, d3)
  local start = d0 % slice.units * BLOCK
  local $words = unpack_words('<$I4s', call('GETRANGE', slice.key, start, start + BLOCK - 1))
  local new = false
  local group, bit
  -- @unroll
  group = d$d % 32
  bit = POWER[group]
  d$d = (d$d - group) / 32
  if w$i % (bit + bit) < bit then
    w$i = w$i + bit
    new = true
  end
  -- @end
  if new then
    before_writing()
    call('SETRANGE', slice.key, start, struct.pack('<$I4s', $words))
  end
  return new
end
