"""Measure the main job, side by side, in one run.

Each way to insert gets the same digests in the same order, 500 a call, first new and then seen. Filters are sized for
100 million items at 1e-4. Server time is the time of EVALSHA (or of the peer's command) in INFO commandstats; wall time
includes the client. Machines are noisy: read ratios, not microseconds.

Servers: ``redis`` (redis-server on the PATH), ``valkey`` (the embedded one), ``bloom`` (Redis with RedisBloom, extra
``bench``).
"""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from functools import partial

import redis

from bench import ROOT, servers
from bench.commands import Commands
from bench.runner import Row, Servers, turns
from bench.usage import cpu, spent
from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import hasher, make_digester, shard_of
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.rules import canonical_rules

#: A hundred rules of other domains, and one that uses every kind of step for all hosts.
RULES = [
    *({"domain": f"shop-{n}.example", "keep": ["id", "page"]} for n in range(100)),
    {"drop": ["sid", "session*"], "lower_path": True, "cut_prefix": "/amp", "cut_suffix": ";jsessionid=*"},
]

CAPACITY, ERROR_RATE, BATCH, TURNS = 100_000_000, 1e-4, 500, 10

#: So many that each has one bitmap, as ``setbit`` has it.
SHARDS = 18

SETBIT = "k SETBIT in Lua"

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


def made(client: redis.Redis, layout: str) -> UriFilter:
    """Make the filter of a layout, if it is not there, and load its script."""
    url = servers.address(client)
    news = UriFilter.create(layout, capacity=CAPACITY, error_rate=ERROR_RATE, layout=layout, shards=SHARDS, redis=url)
    news.insert("load the script")
    return news


def ours(client: redis.Redis, layout: str) -> tuple[Way, int]:
    """Insert with this library's script, with call ids; return the function and the number of shards."""
    commands = Commands(made(client, layout))
    return lambda shard, packed: client.execute_command(*commands.of([(shard, packed)])[0]), SHARDS


def setbit(client: redis.Redis) -> tuple[Way, int]:
    """Insert with k SETBITs an item, into bitmaps of the size that those of the classic filter have."""
    config = made(client, "classic").config
    sha1 = client.script_load((ROOT / "bench" / "setbit.lua").read_text())
    for shard in range(SHARDS):
        client.setrange(f"setbit:{shard}", config.bytes - 1, b"\0")
    return lambda shard, packed: client.evalsha(sha1, 1, f"setbit:{shard}", packed, config.units, config.k), SHARDS


def bloom(client: redis.Redis) -> tuple[Way, int]:
    """Insert with RedisBloom's BF.MADD, into one filter of the whole size."""
    client.execute_command("BF.RESERVE", "bloom", ERROR_RATE, CAPACITY)

    def send(_: int, packed: bytes) -> object:
        return client.execute_command("BF.MADD", "bloom", *(packed[i : i + 16] for i in range(0, len(packed), 16)))

    return send, 1


def measure(client: redis.Redis, way: Way, work: Iterator[list[tuple[int, bytes]]]) -> tuple[float, float]:
    """Return microseconds an item of the next piece of work: server time and wall time."""
    some = next(work)
    client.config_resetstat()
    start = time.perf_counter()
    for shard, packed in some:
        way(shard, packed)
    wall = time.perf_counter() - start
    used = spent(client, "BF.MADD", "bf.madd")
    items = BATCH * len(some)
    return used / items, wall * 1e6 / items


def server_time(name: str, count: int) -> Iterator[Row]:
    """Yield the rows of one server: the median of ten rounds, each with a tenth of the items for every way."""
    ways = {SETBIT: setbit} | {layout: partial(ours, layout=layout) for layout in ("blocked", "classic")}
    ways |= {"RedisBloom BF.MADD": bloom} if name == "bloom" else {}
    with servers.server(name) as client:
        opened = {label: make(client) for label, make in ways.items()}
        work = {label: batches(count, shards) for label, (_, shards) in opened.items()}
        found = []
        for _ in ("new", "seen"):
            pieces = {label: iter([some[turn::TURNS] for turn in range(TURNS)]) for label, some in work.items()}
            found.append(
                turns({each: partial(measure, client, way, pieces[each]) for each, (way, _) in opened.items()}, TURNS)
            )
    for label in ways:
        row: Row = {"server": name, "way": label}
        for kind, times in zip(("new", "seen"), found, strict=True):
            (used, wall), (reference, _) = (
                map(statistics.median, zip(*times[of], strict=True)) for of in (label, SETBIT)
            )
            row |= {kind: used, f"{kind}, to SETBIT": used / reference, f"{kind}, wall": wall}
        yield row


def python_side(name: str, count: int) -> Iterator[Row]:
    """Yield the cost of the library itself: the processor time of this process, without any waiting."""
    uris = [f"https://example.com/{i}" for i in range(count)]
    with servers.server(name) as client:
        for capacity in (10_000, CAPACITY):
            with UriFilter.create(f"n{capacity}", capacity=capacity, redis=servers.address(client)) as news:
                for kind in ("new", "seen"):
                    start = cpu()
                    for at in range(0, count, 9000):
                        news.insert_many(uris[at : at + 9000])
                    us = (cpu() - start) * 1e6 / count
                    yield {"server": name, "kind": kind, "shards": news.config.shards, "us": us}


def normalisations() -> Iterator[Row]:
    """Yield the cost of each normalisation of an item: the least of five rounds, all URLs in each."""
    urls = (ROOT / "examples" / "urls.txt").read_text().splitlines()
    rules = canonical_rules(RULES, "loose")
    for name, its_rules in (*((each, None) for each in NORMALIZATIONS), ("loose", rules)):
        digester = make_digester(name, "mmh3", "1", its_rules)
        least = min(timeit.repeat(partial(digester, urls), number=1, repeat=5))
        yield {"normalisation": name + (", rules" if its_rules else ""), "us": least * 1e6 / len(urls)}


def main(items: int = 300_000, server: Servers = ("redis", "valkey")) -> Iterator[str | Row]:
    """Yield all rows."""
    yield f"Inserting into {CAPACITY:,} at {ERROR_RATE:g}, {BATCH} a call, us an item"
    for name in server:
        yield from server_time(name, items)
    yield "\nPython side of insert_many, normalize none, lists of 9,000, us of processor time an item"
    yield from python_side(server[0], items)
    yield "\nNormalisation and digest (mmh3) of the URLs of examples/urls.txt, us an item"
    yield from normalisations()
