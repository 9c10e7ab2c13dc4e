"""The names of keys, for tests that look into Redis or damage it."""

from __future__ import annotations

from urifilter_redis.protocol.keys import FilterKeys


def shard_key(name: str, shard: int, shards: int, end: str) -> str:
    """A key of a shard of a filter that this release has made."""
    return FilterKeys("urifilter", name, shards).shard(shard).base + end
