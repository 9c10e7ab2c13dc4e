-- Each slice becomes one older: today becomes history_1, history_1 becomes history_2. (Rolling's history stays.)
-- Returns a list of moves {from, to}, and of the entries of the slices after the turn, both from oldest to newest.
local function one_older(base, slices)
  local moves, entries = {}, {}
  for name, geometry in string.gmatch(slices, '(%S+)(:%d+:%d+)') do
    local number = string.match(name, '^history_(%d+)$')
    local to = name
    if name == 'today' then
      to = 'history_1'
    elseif number then
      to = 'history_' .. number + 1
    end
    moves[#moves + 1], entries[#entries + 1] = { base .. name, base .. to }, to .. geometry
  end
  return moves, entries
end
