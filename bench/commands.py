"""Commands of a filter's scripts as the library sends them, without the rest of its client."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import shard_of
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.call_ids import CallIds
from urifilter_redis.protocol.keys import FilterKeys

Command = tuple[Any, ...]


class Commands:
    """Makes the commands of a filter, with call ids or without."""

    def __init__(self, news: UriFilter, command: str = "insert", *, call_ids: bool = True) -> None:
        self._news, self._command, self._ids = news, command, CallIds() if call_ids else None
        self.keys = FilterKeys("urifilter", news.name, news.config.shards)

    def of(self, packed: Iterable[tuple[int, bytes]]) -> list[Command]:
        """Return a command for each (shard, packed digests); no two of a list have one call id."""
        packed, news = [*packed], self._news
        drawn = [self._ids.draw() for _ in packed] if self._ids else []
        names = [str(each) for each in drawn] or [calls.NO_CALL_ID] * len(packed)
        made = [
            calls.items(self._command, news.config, self.keys.shard(shard), news.view(shard), name, some).command()
            for (shard, some), name in zip(packed, names, strict=True)
        ]
        for each in drawn:
            self._ids.release(each)
        return made

    def singly(self, digests: Iterable[bytes]) -> list[Command]:
        """Return a command for each digest."""
        return self.of((shard_of(each, self._news.config.shards), each) for each in digests)


def fill_half(client: redis.Redis, news: UriFilter) -> None:
    """Set half of the bits of all live slices, which takes their memory (counting: make half of the counters 1)."""
    keys = FilterKeys("urifilter", news.name, news.config.shards)
    for shard in range(news.config.shards):
        for each in news.view(shard).slices:
            for name in each.names:
                bits = os.urandom(each.size)
                if news.config.layout == "counting":
                    bits = bits.translate(bytes(byte & 0x11 for byte in range(256)))
                client.setrange(keys.shard(shard).slice(name), 0, bits)


def send(client: redis.Redis, commands: Sequence[Command], at_once: int) -> None:
    """Send commands in pipelines of so many."""
    for start in range(0, len(commands), at_once):
        with client.pipeline(transaction=False) as pipeline:
            for command in commands[start : start + at_once]:
                pipeline.execute_command(*command)
            pipeline.execute()
