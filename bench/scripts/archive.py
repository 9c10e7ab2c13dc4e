"""Measure checkpoints and restores.

The filters have N items and are half full. For each filter it prints the time and bytes of a full checkpoint and of one
without changes, the time of a restore into an empty server, the memory of this process, and the longest script or
command in SLOWLOG. It also prints the time of batches of 500 inserts, alone and during checkpoints. Machines are noisy:
read ratios.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import redis

from bench import servers
from bench.load import under_load
from bench.runner import Servers, timed
from urifilter_redis import UriFilter

BATCH = 500
KINDS: dict[str, dict[str, Any]] = {
    "forever": {},
    "rolling, 30 slices": {"retention": "rolling", "slices": 30, "period": "1d"},
    "ring, 4 slices": {"retention": "ring", "slices": 4, "period": "1d"},
}


def measure(admin: redis.Redis, archive: str, items: int, settings: dict[str, Any]) -> Iterator[str]:
    """Measure checkpoints and a restore of one filter."""
    admin.flushall()
    where = {"redis": servers.address(admin), "archive": archive}
    load = partial(under_load, 1, url=where["redis"], name="news", batch=BATCH, room=10**15, seconds=3)
    with UriFilter.create("news", **where, capacity=2 * items, **settings) as news:
        for start in range(0, items, 50_000):
            news.insert_many(range(start, start + 50_000))
            if start in {items // 2, items // 4} and "period" in settings:
                news.rotate()
        alone, _ = load(None)
        admin.config_set("slowlog-log-slower-than", 2000)
        admin.slowlog_reset()
        full, done = timed(news.checkpoint)
        unchanged, _ = timed(news.checkpoint)
        meanwhile, _ = load(partial(news.checkpoint, full=True))
        size = news.config.segments * news.config.bytes * len(news.view(0).slices)
        news.checkpoint()
    admin.flushall()
    restored, news = timed(partial(UriFilter.open, "news", **where))
    with news:
        news.drop()
    longest = max((entry["duration"] for entry in admin.slowlog_get(100)), default=0) / 1000
    speeds = f"{full:.2f} s ({size / full / 1e6:.0f} MB/s), unchanged {1000 * unchanged:.0f} ms"
    yield f"  checkpoint of {size / 1e6:.0f} MB as {done.size / 1e6:.1f} MB: {speeds}; restore {restored:.2f} s"
    for name, taken in (("alone", alone), ("while checkpoints run", meanwhile)):
        shown = ", ".join(f"p{q} {taken[len(taken) * q // 100]:.1f}" for q in (50, 99))
        yield f"  a batch of {BATCH} inserts, {name}: {shown} ms"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield f"  longest script or command {longest:.1f} ms; this process took at most {memory:.0f} MB"


def main(items: int = 2_000_000, server: Servers = ("redis",), archive: str = "") -> Iterator[str]:
    """Measure each kind of filter on each server.

    Options:
        archive: its URL, in the place of a temporary folder
    """
    for kind in server:
        with servers.server(kind) as admin, tempfile.TemporaryDirectory() as folder:
            for name, settings in KINDS.items():
                yield f"{kind}, {name}, {items:,} items of {2 * items:,}"
                yield from measure(admin, archive or Path(folder).as_uri(), items, settings)
