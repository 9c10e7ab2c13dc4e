-- Returns the age of an item: the age of the newest tested slice that has it; 0 if none has it.
local function age_in(tested, d0, d1, d2, d3)
  for i = 1, #tested do
    if has(tested[i], d0, d1, d2, d3) then
      return tested[i].age
    end
  end
  return 0
end
