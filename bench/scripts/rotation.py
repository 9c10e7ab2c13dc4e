"""Measure the effect of rotations on inserts.

Processes insert batches of 200 without pause into a rolling filter for 50 million items, first alone, then while
rotations run one after another. It prints the time of a batch (p50, p99, p99.9, longest), the longest script or command
in SLOWLOG, the ratio of both p99.9, and the size of the closed slices as a ratio to the entropy of their bits. Then it
prints the server time an item of every retention, for a filter with a full window. Machines are noisy: read ratios.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import redis

from bench import servers
from bench.load import under_load
from bench.runner import Row, Servers, timed
from bench.usage import spent
from urifilter_redis import UriFilter

ROOM, BATCH, PROCESSES = 50_000_000, 200, 2
ROLLING: dict[str, Any] = {"retention": "rolling", "slices": 30, "period": "1d"}
RING: dict[str, Any] = {"retention": "ring", "slices": 4, "period": "1d"}

#: Settings of filters for 2 million items, which are measured with full windows.
SIDE_BY_SIDE: dict[str, dict[str, Any]] = {
    "forever": {},
    "forever, classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "growing": {"retention": "growing"},
    "rolling, 30 slices": ROLLING,
    "ring, 4 slices": RING,
    "ring, 30 slices": RING | {"slices": 30},
    "ring, 4 slices, write=all": RING | {"write": "all"},
}


def pauses(client: redis.Redis, name: str, seconds: float) -> Iterator[str | Row]:
    """Yield the times of batches with and without rotations."""
    url = servers.address(client)
    client.config_set("slowlog-log-slower-than", 1000)
    longest: list[float] = []
    with UriFilter.create("rolling", redis=url, capacity=ROOM, **ROLLING) as news:
        for label, rotate in (("alone", None), ("while it rotates", news.rotate)):
            client.slowlog_reset()
            load = {"url": url, "name": "rolling", "batch": BATCH, "room": ROOM, "seconds": seconds}
            taken, rotations = under_load(PROCESSES, rotate, **load)
            slowest = max((entry["duration"] / 1000 for entry in client.slowlog_get(1000)), default=0.0)
            parts = {name: taken[min(len(taken) - 1, int(len(taken) * share))] for name, share in SHARES.items()}
            row: Row = {"server": name, "way": label, "batches": len(taken), "rotations": rotations}
            yield row | parts | {"longest": taken[-1], "SLOWLOG": slowest}
            longest.append(parts["p99.9"])
    yield f"{name}: p99.9 while it rotates: {longest[1] / longest[0]:.1f} times that alone"


SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def closed_slices(client: redis.Redis, name: str) -> str:
    """Return the size of a closed slice that has a 30th of its window's items."""
    with UriFilter.create("closed", redis=servers.address(client), capacity=4_000_000, **ROLLING) as news:
        news.insert_many(range(4_000_000 // 30))
        fill, size = news.info().fill, news.config.bytes
        took, _ = timed(news.rotate)
        packed = sum(map(len, client.hvals("urifilter:{closed:0}:slice:0")))
        bound = -(fill * math.log2(fill) + (1 - fill) * math.log2(1 - fill)) * size
        cells = f"{fill:6.2%} full: {packed:,} of {size:,} bytes, {packed / bound:.2f} of the entropy"
        return f"{name}: a closed slice, {cells}; a rotation of it took {took:.2f} s"


def side_by_side(client: redis.Redis, name: str) -> Iterator[Row]:
    """Yield server time an item of every retention."""
    numbers, reference = itertools.count(), 0.0
    for label, settings in SIDE_BY_SIDE.items():
        with UriFilter.create("side", redis=servers.address(client), capacity=2_000_000, **settings) as news:
            for _ in range((news.config.slices or 1) - 1):
                news.rotate()
            items = [*itertools.islice(numbers, 100_000)]
            row: Row = {"server": name, "retention": label}
            for kind in ("new", "seen"):
                before = spent(client)
                news.insert_many(items)
                us = (spent(client) - before) / len(items)
                reference = reference or us
                row |= {kind: us, f"{kind}, ratio": us / reference}
            yield row | {"MB": news.info().memory / 1e6}
            news.drop()


def main(seconds: float = 10, server: Servers = ("redis", "valkey")) -> Iterator[str | Row]:
    """Measure on each server."""
    yield f"{PROCESSES} processes, batches of {BATCH} into rolling, 50M: ms a batch; slowest on the server, ms"
    for name in server:
        with servers.server(name) as client:
            yield from pauses(client, name, seconds)
            yield closed_slices(client, name)
    yield "\nEvery retention, 2M at 1e-4, window full: us of server time an item, new and seen (ratio to forever, new)"
    for name in server:
        with servers.server(name) as client:
            yield from side_by_side(client, name)
