"""Measure the main job, side by side, in one run: ``python bench/bench.py [--items N] [--server NAME …]``.

Each way to insert gets the same digests in the same order, 500 a call, first new and then seen. Filters are sized for
100 million items at 1e-4. Server time is the time of EVALSHA (or of the peer's command) in INFO commandstats; wall time
includes the client. Machines are noisy: read ratios, not microseconds.

Servers: ``redis`` (redis-server on the PATH), ``valkey`` (the embedded one), ``bloom`` (Redis with RedisBloom, extra
``bench``).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from servers import NAMES, address, server

from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import hasher, make_digester, shard_of
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.rules import canonical_rules
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.call_ids import CallIds
from urifilter_redis.protocol.keys import FilterKeys

if TYPE_CHECKING:
    import redis

#: A hundred rules of other domains, and one that uses every kind of step for all hosts.
RULES = [
    *({"domain": f"shop-{n}.example", "keep": ["id", "page"]} for n in range(100)),
    {"drop": ["sid", "session*"], "lower_path": True, "cut_prefix": "/amp", "cut_suffix": ";jsessionid=*"},
]

CAPACITY, ERROR_RATE, BATCH = 100_000_000, 1e-4, 500
TURNS = 10

#: So many that each has one bitmap, as ``setbit`` has it.
SHARDS = 18

#: A function that sends one batch to one shard: (shard, packed digests).
Way = Callable[[int, bytes], object]


def batches(count: int, shards: int) -> list[tuple[int, bytes]]:
    """Return the digests of ``count`` URIs as (shard, 500 packed digests), in the order in which they are sent."""
    by_shard: list[list[bytes]] = [[] for _ in range(shards)]
    for digest in hasher("mmh3", "1")(b"https://example.com/%d" % i for i in range(count)):
        by_shard[shard_of(digest, shards)].append(digest)
    full = [
        (shard, b"".join(digests[start : start + BATCH]))
        for shard, digests in enumerate(by_shard)
        for start in range(0, len(digests) - BATCH + 1, BATCH)
    ]
    return sorted(full, key=lambda each: each[1])  # shards in turn, as crawlers mix them


def ours(client: redis.Redis, layout: str) -> tuple[Way, int]:
    """Insert with this library's script, with call ids; return the function and the number of shards."""
    url = address(client)
    news = UriFilter.create(layout, capacity=CAPACITY, error_rate=ERROR_RATE, layout=layout, shards=SHARDS, redis=url)
    news.insert("load the script")
    ids, keys = CallIds(), FilterKeys("urifilter", layout, news.config.shards)

    def send(shard: int, packed: bytes) -> object:
        call_id = ids.draw()
        call = calls.items("insert", news.config, keys.shard(shard), news.view(shard), str(call_id), packed)
        reply = client.execute_command(*call.command())
        ids.release(call_id)
        return reply

    return send, news.config.shards


def setbit(client: redis.Redis) -> tuple[Way, int]:
    """Insert with k SETBITs an item, into the bitmaps of a classic filter of the same size."""
    _, shards = ours(client, "classic")
    config = UriFilter.open("classic", redis=address(client)).config
    sha1 = client.script_load((Path(__file__).parent / "setbit.lua").read_text())
    for shard in range(shards):
        client.setrange(f"setbit:{shard}", config.bytes - 1, b"\0")
    return lambda shard, packed: client.evalsha(sha1, 1, f"setbit:{shard}", packed, config.units, config.k), shards


def bloom(client: redis.Redis) -> tuple[Way, int]:
    """Insert with RedisBloom's BF.MADD, into one filter of the whole size."""
    client.execute_command("BF.RESERVE", "bloom", ERROR_RATE, CAPACITY)

    def send(_: int, packed: bytes) -> object:
        return client.execute_command("BF.MADD", "bloom", *(packed[i : i + 16] for i in range(0, len(packed), 16)))

    return send, 1


def measure(client: redis.Redis, way: Way, work: list[tuple[int, bytes]]) -> tuple[float, float]:
    """Return microseconds an item: server time and wall time."""
    client.config_resetstat()
    start = time.perf_counter()
    for shard, packed in work:
        way(shard, packed)
    wall = time.perf_counter() - start
    stats = client.info("commandstats")
    used = sum(
        stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_BF.MADD", "cmdstat_bf.madd") if name in stats
    )
    items = BATCH * len(work)
    return used / items, wall * 1e6 / items


def server_time(name: str, count: int) -> None:
    """Print the rows of one server: the median of ten rounds, each with a tenth of the items for every way."""
    ways = {"k SETBIT in Lua": setbit, "blocked": lambda c: ours(c, "blocked"), "classic": lambda c: ours(c, "classic")}
    if name == "bloom":
        ways["RedisBloom BF.MADD"] = bloom
    with server(name) as client:
        made = {label: make(client) for label, make in ways.items()}
        work = {label: batches(count, shards) for label, (_, shards) in made.items()}
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in ("new", "seen"):
            turns: dict[str, list[tuple[float, float]]] = {label: [] for label in ways}
            for turn in range(TURNS):
                for label, (way, _) in made.items():
                    turns[label].append(measure(client, way, work[label][turn::TURNS]))
            for label, times in turns.items():
                found.setdefault(label, []).append(tuple(map(statistics.median, zip(*times, strict=True))))
    (reference_new, _), (reference_seen, _) = found["k SETBIT in Lua"]
    for label, ((new, new_wall), (seen, seen_wall)) in found.items():
        cells = f"{new:7.2f} ({new / reference_new:.2f}) {seen:7.2f} ({seen / reference_seen:.2f})"
        print(f"{name:8} {label:20} {cells} {new_wall:10.2f} {seen_wall:10.2f}")


def python_side(name: str, count: int) -> None:
    """Print the cost of the library itself: the processor time of this process, without any waiting."""
    print("\nPython side of insert_many, normalize none, lists of 9,000, us of processor time an item")
    uris = [f"https://example.com/{i}" for i in range(count)]
    with server(name) as client:
        url = address(client)
        for capacity in (10_000, CAPACITY):
            with UriFilter.create(f"n{capacity}", capacity=capacity, redis=url) as news:
                for label in ("new", "seen"):
                    start = resource.getrusage(resource.RUSAGE_SELF)
                    for at in range(0, count, 9000):
                        news.insert_many(uris[at : at + 9000])
                    end = resource.getrusage(resource.RUSAGE_SELF)
                    used = end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime
                    print(f"{name:8} {news.config.shards:3} shards  {label:5} {used * 1e6 / count:6.2f}")


def normalisations() -> None:
    """Print the cost of each normalisation of an item: the least of five rounds, all URLs in each."""
    urls = (Path(__file__).parents[1] / "examples" / "urls.txt").read_text().splitlines()
    print("\nNormalisation and digest (mmh3) of the URLs of examples/urls.txt, us an item")
    rules = canonical_rules(RULES, "loose")
    for name, its_rules in (*((each, None) for each in NORMALIZATIONS), ("loose", rules)):
        digester = make_digester(name, "mmh3", "1", its_rules)
        least = min(timeit.repeat(lambda digester=digester: digester(urls), number=1, repeat=5))
        print(f"{name + (', rules' if its_rules else ''):14} {least * 1e6 / len(urls):6.2f}")


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=300_000)
    parser.add_argument("--server", nargs="+", choices=NAMES, default=["redis", "valkey"])
    options = parser.parse_args()
    print(f"Inserting into {CAPACITY:,} at {ERROR_RATE:g}, {BATCH} a call, us an item (ratio to SETBIT)")
    print(f"{'server':8} {'way':20} {'new':>14} {'seen':>14} {'new, wall':>10} {'seen, wall':>10}")
    for name in options.server:
        server_time(name, options.items)
    python_side(options.server[0], options.items)
    normalisations()


if __name__ == "__main__":
    main()
