"""All that a server holds, to see whether something has changed."""

from __future__ import annotations

#: How to read a key of each type. (DUMP of a hash may list its fields in another order each time.)
_READ = {
    b"MBbloom--": lambda client, key: client.dump(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"string": lambda client, key: client.get(key),
    b"set": lambda client, key: client.smembers(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
}


def dumped(client) -> dict[bytes, object]:
    return {key: _READ[client.type(key)](client, key) for key in client.keys()}
