"""Measure the effect of rotations on inserts: ``python bench/rotation.py [--seconds N] [--server redis valkey]``.

Processes insert batches of 200 without pause into a rolling filter for 50 million items, first alone, then while
rotations run one after another. It prints the time of a batch (p50, p99, p99.9, longest), the longest script or command
in SLOWLOG, the ratio of both p99.9, and the size of the closed slices as a ratio to the entropy of their bits. Then it
prints the server time an item of every retention, for a filter with a full window. Machines are noisy: read ratios.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import time
from typing import TYPE_CHECKING

from servers import server

from urifilter_redis import UriFilter

if TYPE_CHECKING:
    import redis

ROLLING = {"capacity": 50_000_000, "retention": "rolling", "slices": 30, "period": "1d"}
BATCH = 200
PROCESSES = 2

#: Settings of filters for 2 million items, which are measured with full windows.
SIDE_BY_SIDE = {
    "forever": {},
    "forever, classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "growing": {"retention": "growing"},
    "rolling, 30 slices": {"retention": "rolling", "slices": 30, "period": "1d"},
    "ring, 4 slices": {"retention": "ring", "slices": 4, "period": "1d"},
    "ring, 30 slices": {"retention": "ring", "slices": 30, "period": "1d"},
    "ring, 4 slices, write=all": {"retention": "ring", "slices": 4, "period": "1d", "write": "all"},
}


def insert_for(url: str, seed: int, seconds: float, times: multiprocessing.Queue[list[float]]) -> None:
    """Insert batches with half of the items new; put the times of all batches, in ms, into the queue."""
    dice, taken, end = random.Random(seed), [], time.perf_counter() + seconds
    with UriFilter.open("rolling", redis=url) as news:
        while (start := time.perf_counter()) < end:
            news.insert_many([f"https://example.com/{dice.randrange(50_000_000)}" for _ in range(BATCH)])
            taken.append(1000 * (time.perf_counter() - start))
    times.put(taken)


def under_load(url: str, seconds: float, news: UriFilter | None) -> tuple[list[float], int]:
    """Run the inserting processes, and rotate ``news`` meanwhile; None: no rotations."""
    times: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    running = [
        multiprocessing.Process(target=insert_for, args=(url, int(time.time()) + n, seconds, times))
        for n in range(PROCESSES)
    ]
    for each in running:
        each.start()
    rotations, end = 0, time.perf_counter() + seconds
    while news is not None and time.perf_counter() < end:
        news.rotate()
        rotations += 1
    taken = sorted(ms for _ in running for ms in times.get())
    for each in running:
        each.join()
    return taken, rotations


def pauses(client: redis.Redis, name: str, seconds: float) -> None:
    """Print the times of batches with and without rotations."""
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    client.config_set("slowlog-log-slower-than", 1000)
    longest: list[float] = []
    with UriFilter.create("rolling", redis=url, **ROLLING) as news:
        for label, rotated in (("alone", None), ("while it rotates", news)):
            client.slowlog_reset()
            taken, rotations = under_load(url, seconds, rotated)
            slowest = max((entry["duration"] / 1000 for entry in client.slowlog_get(1000)), default=0.0)
            p50, p99, p999 = (taken[min(len(taken) - 1, int(len(taken) * p))] for p in (0.5, 0.99, 0.999))
            cells = f"{p50:7.2f} {p99:7.2f} {p999:7.2f} {taken[-1]:8.2f} {slowest:9.2f}"
            print(f"{name:8} {label:18} {len(taken):7,} {rotations:9} {cells}")
            longest.append(p999)
    print(f"{name:8} p99.9 while it rotates: {longest[1] / longest[0]:.1f} times that alone")


def closed_slices(client: redis.Redis, name: str) -> None:
    """Print the size of a closed slice that has a 30th of its window's items."""
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    with UriFilter.create("closed", redis=url, **ROLLING | {"capacity": 4_000_000}) as news:
        news.insert_many(range(4_000_000 // 30))
        fill, size = news.info().fill, news.config.bytes
        start = time.perf_counter()
        news.rotate()
        took = time.perf_counter() - start
        packed = sum(map(len, client.hvals("urifilter:{closed:0}:slice:0")))
        bound = -(fill * math.log2(fill) + (1 - fill) * math.log2(1 - fill)) * size
        cells = f"{fill:6.2%} full: {packed:,} of {size:,} bytes, {packed / bound:.2f} of the entropy"
        print(f"{name:8} a closed slice, {cells}; a rotation of it took {took:.2f} s")


def side_by_side(client: redis.Redis, name: str) -> None:
    """Print server time an item of every retention."""
    url, counter = f"unix://{client.connection_pool.connection_kwargs['path']}", iter(range(10**12))
    reference = 0.0
    for label, settings in SIDE_BY_SIDE.items():
        with UriFilter.create("side", redis=url, capacity=2_000_000, **settings) as news:
            for _ in range((news.config.slices or 1) - 1):
                news.rotate()
            items = [next(counter) for _ in range(100_000)]
            found = []
            for _ in ("new", "seen"):
                client.config_resetstat()
                news.insert_many(items)
                found.append(client.info("commandstats")["cmdstat_evalsha"]["usec"] / len(items))
            reference = reference or found[0]
            cells = " ".join(f"{us:6.2f} ({us / reference:.2f})" for us in found)
            print(f"{name:8} {label:28} {cells}  {news.info().memory / 1e6:7.1f} MB")
            news.drop()


def main() -> None:
    """Run all measurements on each server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--server", nargs="+", choices=["redis", "valkey"], default=["redis", "valkey"])
    options = parser.parse_args()
    print(f"{PROCESSES} processes, batches of {BATCH} into rolling, 50M: ms a batch; slowest on the server, ms")
    print(f"{'server':8} {'':18} {'batches':>7} {'rotations':>9}     p50     p99   p99.9  longest  SLOWLOG")
    for name in options.server:
        with server(name) as client:
            pauses(client, name, options.seconds)
            closed_slices(client, name)
    print("\nEvery retention, 2M at 1e-4, window full: us of server time an item, new and seen (ratio to forever, new)")
    for name in options.server:
        with server(name) as client:
            side_by_side(client, name)


if __name__ == "__main__":
    main()
