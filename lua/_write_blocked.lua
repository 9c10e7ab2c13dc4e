call('SETRANGE', key, start, struct.pack('<$I4s', $words))
