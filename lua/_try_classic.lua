call('BITFIELD', key, 'GET', 'u1', 0)
call('BITFIELD_RO', key, 'GET', 'u1', 0)
