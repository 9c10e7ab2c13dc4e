bitfield('BITFIELD', key, size, 'SET', x, y, 1)
