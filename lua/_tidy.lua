-- Others may take or commit all that a dead holder has. Such holders would pile up where nobody reclaims. So a call that
-- adds a holder looks at two random ones first, and removes those that are dead and have nothing in hand.
-- Needs: call, adds_holder, clock (ms), own, has_hands, HOLDERS.

for _, other in ipairs(adds_holder and call('ZRANDMEMBER', HOLDERS, 2) or {}) do
  if other ~= own and tonumber(call('ZSCORE', HOLDERS, other)) <= clock and not has_hands(other) then
    call('ZREM', HOLDERS, other)
  end
end
