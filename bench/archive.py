"""Measure checkpoints and restores: ``python bench/archive.py [--items N] [--server redis valkey] [--archive URL]``.

The filters have N items and are half full. For each filter it prints the time and bytes of a full checkpoint and of one
without changes, the time of a restore into an empty server, the memory of this process, and the longest script or
command in SLOWLOG. It also prints the time of batches of 500 inserts, alone and during checkpoints. Machines are noisy:
read ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from servers import server

from urifilter_redis import UriFilter

if TYPE_CHECKING:
    import redis

BATCH = 500
KINDS = {
    "forever": {},
    "rolling, 30 slices": {"retention": "rolling", "slices": 30, "period": "1d"},
    "ring, 4 slices": {"retention": "ring", "slices": 4, "period": "1d"},
}


def insert_for(url: str, seconds: float, times: multiprocessing.Queue[list[float]]) -> None:
    """Insert batches of new items; put the times of all batches, in ms, into the queue."""
    taken, end, number = [], time.perf_counter() + seconds, time.time_ns()
    with UriFilter.open("news", redis=url, archive="") as news:
        while (start := time.perf_counter()) < end:
            news.insert_many(range(number, number + BATCH))
            number += BATCH
            taken.append(1000 * (time.perf_counter() - start))
    times.put(taken)


def inserting(url: str, seconds: float) -> tuple[multiprocessing.Process, multiprocessing.Queue[list[float]]]:
    """Start a process that inserts."""
    times: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    process = multiprocessing.Process(target=insert_for, args=(url, seconds, times))
    process.start()
    return process, times


def measure(admin: redis.Redis, archive: str, items: int, settings: dict[str, object]) -> None:
    """Measure checkpoints and a restore of one filter, and print the figures."""
    admin.flushall()
    url = f"unix://{admin.connection_pool.connection_kwargs['path']}"
    news = UriFilter.create("news", redis=url, archive=archive, capacity=2 * items, **settings)
    for start in range(0, items, 50_000):
        news.insert_many(range(start, start + 50_000))
        if start in {items // 2, items // 4} and "period" in settings:
            news.rotate()
    process, times = inserting(url, 3)
    process.join()
    alone = times.get()
    admin.config_set("slowlog-log-slower-than", 2000)
    admin.slowlog_reset()
    start = time.perf_counter()
    done = news.checkpoint()
    full = time.perf_counter() - start
    start = time.perf_counter()
    news.checkpoint()
    unchanged = time.perf_counter() - start
    process, times = inserting(url, 3)
    while process.is_alive() and times.empty():
        news.checkpoint(full=True)
    meanwhile = times.get()
    process.join()
    size = news.config.segments * news.config.bytes * len(news.view(0).slices)
    news.checkpoint()
    news.close()
    admin.flushall()
    start = time.perf_counter()
    with UriFilter.open("news", redis=url, archive=archive) as news:
        restored = time.perf_counter() - start
        news.drop()
    longest = max((entry["duration"] for entry in admin.slowlog_get(100)), default=0) / 1000
    speeds = f"{full:.2f} s ({size / full / 1e6:.0f} MB/s), unchanged {1000 * unchanged:.0f} ms"
    print(f"  checkpoint of {size / 1e6:.0f} MB as {done.size / 1e6:.1f} MB: {speeds}; restore {restored:.2f} s")
    for name, taken in (("alone", alone), ("while checkpoints run", meanwhile)):
        taken.sort()
        figures = ", ".join(f"p{q} {taken[len(taken) * q // 100]:.1f}" for q in (50, 99))
        print(f"  a batch of {BATCH} inserts, {name}: {figures} ms")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  longest script or command {longest:.1f} ms; this process took at most {memory:.0f} MB")


def main() -> None:
    """Measure each kind of filter on each server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--server", nargs="*", default=["redis"], choices=["redis", "valkey"])
    parser.add_argument("--archive", help="default: a temporary folder")
    options = parser.parse_args()
    for kind in options.server:
        with server(kind) as admin, tempfile.TemporaryDirectory() as folder:
            for name, settings in KINDS.items():
                print(f"{kind}, {name}, {options.items:,} items of {2 * options.items:,}")
                measure(admin, options.archive or Path(folder).as_uri(), options.items, settings)


if __name__ == "__main__":
    main()
