"""Measure the server's longest command in each step of a large filter's life, and the memory around it.

A filter is made, half of its bits are set at random, and it does a step: create, a turn of all shards (a ring of 4),
the growth by one slice, a checkpoint, a restore of one bitmap and of all, a drop and what it lets go. For each step
there are the seconds that it took, the server's longest command in ms (INFO latencystats), its longest moment of
freeing what has expired (LATENCY, whole ms), and its memory before, at most, and after, MB, beside what
``urifilter plan`` says. Other work on the machine lengthens commands: read the least of several runs.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import redis

from bench import servers
from bench.commands import Commands, fill_half
from bench.runner import Row, timed
from bench.usage import ServerCounters
from urifilter_redis import UriFilter
from urifilter_redis.bloom.costs import memory_when_full

RING: dict[str, Any] = {"retention": "ring", "slices": 4, "period": "1d"}

#: Seconds after which what a step lets go has been freed, at 100 ms a bitmap and shard after shard.
FREED = 10.0


class Watched:
    """Measures steps on a server, while a thread reads its memory."""

    def __init__(self, client: redis.Redis) -> None:
        self._client, self._counters = client, ServerCounters(client)
        client.config_set("latency-monitor-threshold", 1)

    def step(self, name: str, work: Callable[[], object], planned: int | None = None) -> Row:
        """Do a step; return its row. ``planned`` is what the plan says of the memory, bytes."""
        self._counters.reset()
        self._client.execute_command("LATENCY RESET")
        memory, ended = [self._memory()], threading.Event()

        def read_memory() -> None:
            with closing(redis.Redis(unix_socket_path=self._client.connection_pool.connection_kwargs["path"])) as other:
                while not ended.wait(0.02):
                    memory.append(int(other.info("memory")["used_memory"]))

        thread = threading.Thread(target=read_memory)
        thread.start()
        try:
            took, _ = timed(work)
        finally:
            ended.set()
            thread.join()
        longest = self._counters.read().longest / 1000
        freeing = max(
            (each[3] for each in self._client.execute_command("LATENCY LATEST") if b"expire" in each[0]), default=0
        )
        row: Row = {"step": name, "s": took, "longest, ms": longest, "freeing, ms": float(freeing)}
        figures = {"MB before": memory[0], "MB at most": max(memory), "MB after": self._memory()}
        row |= {column: figure / 1e6 for column, figure in figures.items()}
        return row | {"MB of plan": "–" if planned is None else planned / 1e6}

    def _memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])


def ring(client: redis.Redis, url: str, items: int) -> Iterator[Row]:
    """Yield the steps of a ring: create, a turn, a drop."""
    watched, made = Watched(client), {"redis": url, "capacity": items, **RING}
    with UriFilter.create("warm", redis=url, capacity=1000, **RING) as warm:
        warm.rotate()
        warm.drop()
    yield watched.step("ring: create", lambda: UriFilter.create("news", **made).close())
    with UriFilter.open("news", redis=url) as news:
        for _ in range(3):
            news.rotate()
        time.sleep(FREED)
        fill_half(client, news)
        yield watched.step("ring: a turn", news.rotate, memory_when_full(news.config))
        time.sleep(FREED)
        yield watched.step("ring: a drop", lambda: (news.drop(), time.sleep(FREED)))


def growing(client: redis.Redis, url: str) -> Iterator[Row]:
    """Yield the growth of a filter by its largest slice: each is told to be full, so that the next is made."""
    watched = Watched(client)
    with UriFilter.create("news", redis=url, capacity=10_000_000, retention="growing") as news:
        meta = Commands(news).keys.shard(0).meta
        for number in range(6):
            client.hset(meta, "inserted", client.hget(meta, "limit"))
            row = watched.step("growing: a slice", lambda number=number: news.insert_many([f"item {number}", "b"]))
            sizes = news.view(0).slices[-1]
            yield row | {"step": f"growing: slice {number + 2}, {sizes.segments} bitmaps"}
        news.drop()


def archived(client: redis.Redis, url: str, items: int, folder: Path) -> Iterator[Row]:
    """Yield the steps of a filter with an archive."""
    watched, made = Watched(client), {"redis": url, "capacity": items, "archive": folder.as_uri()}
    yield watched.step("forever: create", lambda: UriFilter.create("news", **made).close())
    with UriFilter.open("news", redis=url, archive=folder.as_uri()) as news:
        fill_half(client, news)
        planned = memory_when_full(news.config)
        news.insert("an item")
        yield watched.step("forever: a checkpoint", news.checkpoint, planned)
        keys = Commands(news).keys.shard(0)
        client.unlink(keys.slice(news.view(0).slices[0].names[-1]))
        yield watched.step("forever: a restore of one bitmap", lambda: opened(url, folder), planned)
        client.flushall()
        yield watched.step("forever: a restore of all", lambda: opened(url, folder), planned)
        yield watched.step("forever: a drop", lambda: (news.drop(), time.sleep(FREED)))


def opened(url: str, folder: Path) -> None:
    """Open the filter, which restores it."""
    with UriFilter.open("news", redis=url, archive=folder.as_uri()) as news:
        assert news.contains("an item")


def main(items: int = 100_000_000, server: Annotated[str, ("redis", "valkey")] = "redis") -> Iterator[Row]:
    """Yield a row for each step.

    items: of the filter; a billion takes 8 GB of memory and 3 GB of disk
    """
    with servers.server(server) as client, tempfile.TemporaryDirectory() as folder:
        url = servers.address(client)
        yield from ring(client, url, items)
        yield from growing(client, url)
        yield from archived(client, url, items, Path(folder) / "archive")
