-- How an item is found: the age of the newest of the tested slices that has it; 0 if none has.
local function age_in(tested, d0, d1, d2, d3)
  for i = 1, #tested do
    if has(tested[i], d0, d1, d2, d3) then
      return tested[i].age
    end
  end
  return 0
end
