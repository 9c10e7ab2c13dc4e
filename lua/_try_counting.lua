call('BITFIELD', key, 'GET', 'u4', 0)
