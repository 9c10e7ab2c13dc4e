set_counters(key, offsets, counts, 1)
