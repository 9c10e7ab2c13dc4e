call('SETRANGE', key, 0, '')
