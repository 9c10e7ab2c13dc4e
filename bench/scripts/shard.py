"""Measure what a shard costs.

It measures the figures of ``urifilter_redis/bloom/costs.py``, and so those of ``urifilter plan --nodes``.

All times are processor time: that of the server's main thread (INFO cpu), of which a server has one core, and for
rotations and checkpoints that of this process besides, because one waits for the other. So other work on the machine
disturbs them less than times by the clock. Each figure is the least of its rounds, with the median behind it.

- Calls: microseconds of a call and of an item, from calls of one item and of as many as clients send at once, eight
  calls a pipeline. A filter has some 300 MB of bitmaps, half of whose bits are set. Those of layout redisbloom are
  filled by inserts, which takes minutes, and are measured on the server ``bloom`` alone.
- Rotation: ms to allocate and turn a full shard of a ring; ms a MiB to rotate a rolling filter, and ms a MiB more for
  each other closed slice of its window, from all rotations of a window of 30 slices that fills up.
- Checkpoint: ms a MiB of bitmaps, half of whose bits are set, into a folder.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from bench import servers
from bench.commands import Commands, fill_half, send
from bench.runner import Row, Servers
from bench.usage import cpu_of
from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import shard_of
from urifilter_redis.bloom.retention import live_slices, size_first
from urifilter_redis.bloom.sizing import REDISBLOOM, SEGMENT_LIMIT, segment_limit
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Settings

MIB = 2**20

#: Bytes of the bitmaps of a filter whose calls are measured: more than caches hold.
BITMAPS = 300 * MIB

CALLS_A_PIPELINE = 8
PIPELINES, ROUNDS = 10, 9
BUILT = 2 * MIB
WINDOW = 30

TIMED: dict[str, Any] = {"period": "1d", "slices": 4}
RING: dict[str, Any] = {"retention": "ring", **TIMED}
WAYS: dict[str, dict[str, Any]] = {
    "blocked, forever": {},
    "blocked, rolling": {"retention": "rolling", **TIMED},
    "blocked, ring of 4": RING,
    "blocked, ring of 30": RING | {"slices": 30},
    "blocked, ring of 4, write all": RING | {"write": "all"},
    "blocked, ring of 30, write all": RING | {"slices": 30, "write": "all"},
    "classic, forever": {"layout": "classic"},
    "classic, rolling": {"layout": "classic", "retention": "rolling", **TIMED},
    "classic, ring of 4": {"layout": "classic"} | RING,
    "classic, ring of 4, write all": {"layout": "classic", "write": "all"} | RING,
    "counting, forever": {"layout": "counting"},
    "redisbloom, forever": {"layout": REDISBLOOM},
    "redisbloom, ring of 4": {"layout": REDISBLOOM} | RING,
}


def made(client: redis.Redis, wanted: int, shards: int, archive: str = "", **settings: Any) -> UriFilter:
    """Make a filter of so many shards of one bitmap, the largest of at most ``wanted`` bytes each."""

    def is_large(capacity: int) -> bool:
        try:
            sizing = size_first(Settings(capacity=capacity, shards=shards, **settings))
        except ValueError:  # larger than a bitmap may be
            return True
        return sizing.segments > shards or sizing.segment_bytes > wanted

    capacity = 1 + bisect_left(range(2, 10**10), x=True, key=is_large)
    where = {"redis": servers.address(client), "archive": archive}
    return UriFilter.create("news", **where, capacity=capacity, shards=shards, **settings)


def digests(shards: int, items: int) -> Iterator[tuple[int, bytes]]:
    """Yield so many random digests, packed, for each call of a round: (shard, digests), the shards in turn."""
    drawn: list[list[bytes]] = [[] for _ in range(shards)]
    for number in range(PIPELINES * CALLS_A_PIPELINE):
        shard = number % shards
        while len(drawn[shard]) < items:
            digest = os.urandom(16)
            drawn[shard_of(digest, shards)].append(digest)
        yield shard, b"".join(drawn[shard][:items])
        del drawn[shard][:items]


def pipelines(client: redis.Redis, news: UriFilter, items: int) -> Iterator[tuple[float, float]]:
    """Yield rounds of calls of so many items: seconds of server time a call, with all of them new, and again seen."""
    commands = Commands(news)
    for _ in range(ROUNDS):
        packed = [*digests(news.config.shards, items)]
        times = []
        for _ in ("new", "seen"):
            made = commands.of(packed)
            begun = cpu_of(client)
            send(client, made, CALLS_A_PIPELINE)
            times.append((cpu_of(client) - begun) / len(packed))
        yield times[0], times[1]


def least(values: list[float]) -> str:
    """Return the least and the median."""
    return f"{min(values):.2f} ({statistics.median(values):.2f})"


def ms_a_mib(client: redis.Redis, work: Callable[[], object], size: float) -> float:
    """Return the ms a MiB of some work of the server and of this process, of which one waits for the other."""
    begun = cpu_of(client) + time.process_time()
    work()
    return 1000 * (cpu_of(client) + time.process_time() - begun) / (size / MIB)


def measure_calls(client: redis.Redis, settings: dict[str, Any]) -> Row:
    """Return the cells of a row: us a call, and an item that is new, and one that was seen."""
    live, limit = live_slices(Settings(capacity=1000, **settings)), segment_limit(settings.get("layout", "blocked"))
    with made(client, limit, max(1, BITMAPS // (live * limit)), **settings) as news:
        for turn in range(live):
            if turn:
                news.rotate()
            if news.config.layout == REDISBLOOM:
                for _ in range(news.config.capacity // live // 100_000):
                    news.insert_many(random.randbytes(8) for _ in range(100_000))
        news.insert("load the script")
        if news.config.layout != REDISBLOOM:
            fill_half(client, news)
        most = calls.items_a_call(news.config, live)
        alone, many = ([*zip(*pipelines(client, news, items), strict=True)] for items in (1, most))
        items = [[1e6 * (b - min(a)) / (most - 1) for b in many[n]] for n, a in enumerate(alone)]
        call = [1e6 * a - min(items[0]) for a in alone[0]]
        news.drop()
    row: Row = {"items": most, "us a call": least(call)}
    return row | {"us an item, new": least(items[0]), "us an item, seen": least(items[1])}


def measure_turns(client: redis.Redis) -> list[float]:
    """Return the ms of the server for each rotation of a ring of one full shard."""
    found = []
    with made(client, SEGMENT_LIMIT, 1, **RING) as news:
        for _ in range(20):
            begun = cpu_of(client)
            news.rotate()
            found.append(1000 * (cpu_of(client) - begun))
        news.drop()
    return found[TIMED["slices"] :]


def measure_builds(client: redis.Redis) -> Iterator[str]:
    """Yield the ms a MiB of a rotation of a rolling filter, and those for each other closed slice of its window."""
    found = []
    with made(client, BUILT, 1, retention="rolling", slices=WINDOW, period="1d") as news:
        for turn in range(WINDOW):
            items = news.config.capacity // WINDOW
            news.insert_many(range(turn * items, (turn + 1) * items))
            found.append(ms_a_mib(client, news.rotate, news.config.bytes))
        size = sum(map(len, client.hvals("urifilter:{news:0}:slice:5")))
        yield f"a closed slice takes {size / news.config.bytes:.1%} of a bitmap"
        news.drop()
    yield " ".join(["rotations, ms a MiB:", *(f"{each:.0f}" for each in found)])
    others = [(turn - 1, each) for turn, each in enumerate(found) if turn > 0]
    slope, base = statistics.linear_regression(*zip(*others, strict=True))
    yield f"rolling, ms a MiB: {base:.1f}, and {slope:.1f} for each other slice"


def measure_checkpoints(client: redis.Redis) -> list[float]:
    """Return the ms a MiB of full checkpoints."""
    with tempfile.TemporaryDirectory() as folder, made(client, SEGMENT_LIMIT, 1, Path(folder).as_uri()) as news:
        fill_half(client, news)
        size = news.checkpoint(full=True).size
        found = [ms_a_mib(client, lambda: news.checkpoint(full=True), size) for _ in range(5)]
        news.drop()
    return found


def main(server: Servers = ("redis", "valkey"), way: str | None = None) -> Iterator[str | Row]:
    """Yield all figures of each server.

    Options:
        way: measure only the calls of the ways that begin so
    """
    for name in server:
        with servers.server(name) as client:
            if way is None and name != "bloom":
                yield f"{name}: ms to allocate and turn a full shard of a ring: {least(measure_turns(client))}"
                yield from (f"{name}: {line}" for line in measure_builds(client))
                yield f"{name}: checkpoint, ms a MiB: {least(measure_checkpoints(client))}"
            for label, settings in WAYS.items():
                of_module = settings.get("layout") == REDISBLOOM
                if label.startswith(way or "") and of_module == (name == "bloom"):
                    yield {"server": name, "way": label} | measure_calls(client, settings)
