set_counters('BITFIELD', key, offsets, counts, 1)
