"""All that a server holds, to see whether something has changed."""

from __future__ import annotations


def dumped(client) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys()}
