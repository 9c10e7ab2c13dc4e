"""Measure what a shard costs: ``python bench/shard.py [--server redis valkey bloom] [--way TEXT]``.

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

import argparse
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import server

from urifilter_redis import UriFilter
from urifilter_redis.bloom.retention import live_slices, size_first
from urifilter_redis.bloom.sizing import REDISBLOOM, SLICE_LIMIT, slice_limit
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.call_ids import CallIds
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.keys import FilterKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

MIB = 2**20

#: Bytes of the bitmaps of a filter whose calls are measured: more than caches hold.
BITMAPS = 300 * MIB

CALLS_A_PIPELINE = 8
PIPELINES, ROUNDS = 10, 9
BUILT = 2 * MIB
WINDOW = 30

TIMED = {"period": "1d", "slices": 4}
WAYS: dict[str, dict[str, Any]] = {
    "blocked, forever": {},
    "blocked, rolling": {"retention": "rolling", **TIMED},
    "blocked, ring of 4": {"retention": "ring", **TIMED},
    "blocked, ring of 30": {"retention": "ring", **TIMED, "slices": 30},
    "blocked, ring of 4, write all": {"retention": "ring", **TIMED, "write": "all"},
    "blocked, ring of 30, write all": {"retention": "ring", **TIMED, "slices": 30, "write": "all"},
    "classic, forever": {"layout": "classic"},
    "classic, rolling": {"layout": "classic", "retention": "rolling", **TIMED},
    "classic, ring of 4": {"layout": "classic", "retention": "ring", **TIMED},
    "classic, ring of 4, write all": {"layout": "classic", "retention": "ring", **TIMED, "write": "all"},
    "counting, forever": {"layout": "counting"},
    "redisbloom, forever": {"layout": REDISBLOOM},
    "redisbloom, ring of 4": {"layout": REDISBLOOM, "retention": "ring", **TIMED},
}


def used(client: redis.Redis) -> float:
    """Return the seconds of processor time that the server's main thread has taken."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user_main_thread"]) + float(cpu["used_cpu_sys_main_thread"])


def made(client: redis.Redis, wanted: int, shards: int, archive: str = "", **settings: Any) -> UriFilter:
    """Make a filter of so many shards, with the largest bitmaps of at most ``wanted`` bytes each."""
    low, high = 1, 10**10
    while high - low > 1:
        middle = (low + high) // 2
        try:
            small = size_first(Settings(capacity=middle, shards=shards, **settings)).segment_bytes <= wanted
        except ValueError:  # larger than a bitmap may be
            small = False
        low, high = (middle, high) if small else (low, middle)
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    return UriFilter.create("news", redis=url, archive=archive, capacity=low, shards=shards, **settings)


def fill(client: redis.Redis, news: UriFilter) -> None:
    """Set half of the bits of all live slices (counting: make half of the counters 1)."""
    keys = FilterKeys("urifilter", "news", news.config.shards)
    for shard in range(news.config.shards):
        for each in news.view(shard).slices:
            bits = os.urandom(each.size)
            if news.config.layout == "counting":
                bits = bits.translate(bytes(byte & 0x11 for byte in range(256)))
            client.setrange(keys.shard(shard).slice(each.name), 0, bits)


def insert(news: UriFilter, count: int) -> None:
    """Insert so many random items."""
    for _ in range(count // 100_000):
        news.insert_many(random.randbytes(8) for _ in range(100_000))


def digests(count: int, shard: int) -> bytes:
    """Return random digests of a shard, packed."""
    return b"".join(os.urandom(14) + bytes([shard % 16 << 4, shard >> 4]) for _ in range(count))


def pipelines(client: redis.Redis, news: UriFilter, items: int) -> Iterator[tuple[float, float]]:
    """Yield rounds of calls of so many items: seconds of server time a call, with all of them new, and again seen."""
    ids, keys = CallIds(), FilterKeys("urifilter", "news", news.config.shards)
    for _ in range(ROUNDS):
        work = [(n % news.config.shards, items) for n in range(PIPELINES * CALLS_A_PIPELINE)]
        packed = [(shard, digests(count, shard)) for shard, count in work]
        times = []
        for _ in ("new", "seen"):
            begun = used(client)
            for start in range(0, len(packed), CALLS_A_PIPELINE):
                held = [ids.draw() for _ in range(CALLS_A_PIPELINE)]
                with client.pipeline(transaction=False) as pipeline:
                    for (shard, some), each in zip(packed[start : start + CALLS_A_PIPELINE], held, strict=True):
                        call = calls.items("insert", news.config, keys.shard(shard), news.view(shard), str(each), some)
                        pipeline.execute_command(*call.command())
                    pipeline.execute()
                for each in held:
                    ids.release(each)
            times.append((used(client) - begun) / len(packed))
        yield times[0], times[1]


def least(values: list[float]) -> str:
    """Return the least and the median."""
    return f"{min(values):8.2f} ({statistics.median(values):.2f})"


def measure_calls(client: redis.Redis, settings: dict[str, Any]) -> str:
    """Return the cells of a row: us a call, and an item that is new, and one that was seen."""
    live, limit = live_slices(Settings(capacity=1000, **settings)), slice_limit(settings.get("layout", "blocked"))
    with made(client, limit, max(1, BITMAPS // (live * limit)), **settings) as news:
        for turn in range(live):
            if turn:
                news.rotate()
            if news.config.layout == REDISBLOOM:
                insert(news, news.config.capacity // live)
        news.insert("load the script")
        if news.config.layout != REDISBLOOM:
            fill(client, news)
        most = calls.items_a_call(news.config, live)
        alone, many = ([*zip(*pipelines(client, news, items), strict=True)] for items in (1, most))
        items = [[1e6 * (b - min(a)) / (most - 1) for b in many[n]] for n, a in enumerate(alone)]
        call = [1e6 * a - min(items[0]) for a in alone[0]]
        news.drop()
    return f"{most:4} {least(call)} {least(items[0])} {least(items[1])}"


def measure_turns(client: redis.Redis) -> list[float]:
    """Return the ms of the server for each rotation of a ring of one full shard."""
    found = []
    with made(client, SLICE_LIMIT, 1, retention="ring", **TIMED) as news:
        for _ in range(20):
            begun = used(client)
            news.rotate()
            found.append(1000 * (used(client) - begun))
        news.drop()
    return found[TIMED["slices"] :]


def measure_builds(client: redis.Redis) -> tuple[float, float]:
    """Return the ms a MiB of a rotation of a rolling filter, and those for each other closed slice of its window."""
    found = []
    with made(client, BUILT, 1, retention="rolling", slices=WINDOW, period="1d") as news:
        for turn in range(WINDOW):
            items = news.config.capacity // WINDOW
            news.insert_many(range(turn * items, (turn + 1) * items))
            begun = used(client) + time.process_time()
            news.rotate()
            found.append(1000 * (used(client) + time.process_time() - begun) / (news.config.bytes / MIB))
        size = sum(map(len, client.hvals("urifilter:{news:0}:slice:5")))
        print(f"a closed slice takes {size / news.config.bytes:.1%} of a bitmap")
        news.drop()
    print("rotations, ms a MiB:", *(f"{each:.0f}" for each in found))
    others = [(turn - 1, each) for turn, each in enumerate(found) if turn > 0]
    slope, base = statistics.linear_regression(*zip(*others, strict=True))
    return base, slope


def measure_checkpoints(client: redis.Redis) -> list[float]:
    """Return the ms a MiB of full checkpoints."""
    found = []
    with tempfile.TemporaryDirectory() as folder, made(client, SLICE_LIMIT, 1, Path(folder).as_uri()) as news:
        fill(client, news)
        for _ in range(5):
            begun = used(client) + time.process_time()
            size = news.checkpoint(full=True).size
            found.append(1000 * (used(client) + time.process_time() - begun) / (size / MIB))
        news.drop()
    return found


def measure_shards(client: redis.Redis, name: str) -> None:
    """Print the cost of rotations and checkpoints."""
    print(f"{name}: ms to allocate and turn a full shard of a ring: {least(measure_turns(client))}", flush=True)
    print("{}: rolling, ms a MiB: {:.1f}, and {:.1f} for each other slice".format(name, *measure_builds(client)))
    print(f"{name}: checkpoint, ms a MiB: {least(measure_checkpoints(client))}", flush=True)


def main() -> None:
    """Print all figures of each server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", nargs="+", choices=["redis", "valkey", "bloom"], default=["redis", "valkey"])
    parser.add_argument("--way", help="measure only the calls of the ways that begin so")
    options = parser.parse_args()
    for name in options.server:
        with server(name) as client:
            if options.way is None and name != "bloom":
                measure_shards(client, name)
            print(f"{name:8} {'way':32} items  us a call        us an item, new   us an item, seen")
            for label, settings in WAYS.items():
                of_module = settings.get("layout") == REDISBLOOM
                if label.startswith(options.way or "") and of_module == (name == "bloom"):
                    print(f"{name:8} {label:32} {measure_calls(client, settings)}", flush=True)


if __name__ == "__main__":
    main()
