"""Measure the scripts of claims.

All figures are server time, of INFO commandstats: ``insert`` without claims, beside the script of another checkout;
``insert`` of a filter with claims that has nothing in flight; ``claim``, ``commit``, ``release`` and ``reclaim`` of
items of 80 bytes; ``claim`` and ``reject`` of items that failed (the dead letters are full: old ones go); long calls;
a million items in flight among 100 holders, of which one is dead; the beats. The ways of a row take turns in each
round, and the table has the medians. Machines are noisy: read ratios.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import redis

from bench import servers
from bench.commands import send
from bench.runner import Row, Servers, turns
from bench.usage import spent
from urifilter_redis import UriFilter
from urifilter_redis.protocol import calls, claims
from urifilter_redis.protocol.claims import Holding
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import View
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.protocol.scripts import Script

CAPACITY, ROUNDS, HOLDERS, LEASE = 2_000_000, 40, 100, 60_000
SHORT_CALLS = 500  # of one item, in a pipeline
KEYS = FilterKeys("urifilter", "news").shard(0)
KEPT = b"s" + b"https://example.com/a/path/of/a/page/that/is/as/long/as/many/others/12345678.html"[:80]
LONG = b"s" + b"x" * 65_535


class Bench:
    """One shard on a server, and calls that are timed."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.config: Config

    def fresh(self, *, with_claims: bool) -> None:
        """Make the filter anew, and fill a quarter of it."""
        self.client.flushall()
        where = servers.address(self.client)
        with UriFilter.create("news", capacity=CAPACITY, shards=1, hash="md5", redis=where) as news:
            self.config = news.config
        self.learn()
        for _ in range(CAPACITY // 4 // 500):
            self.time(self.items("insert", os.urandom(16 * 500)))
        if with_claims:
            item, holding = os.urandom(16), new_holding()
            self.time(self.claim(item, holding))
            self.learn()
            self.time(self.commit(item, holding))

    def learn(self) -> None:
        """Learn the slices, and whether there are claims."""
        self.view = View.from_meta(to_mapping(self.client.hgetall(KEYS.meta)), "news")

    def items(self, command: str, digests: bytes) -> calls.Call:
        """Return a call of a command about items."""
        return calls.items(command, self.config, KEYS, self.view, "-", digests)

    def claim(self, digests: bytes, holding: Holding, kept: bytes = KEPT) -> calls.Call:
        """Return a call of ``claim``."""
        return claims.claim(self.config, KEYS, self.view, "-", digests, [kept] * (len(digests) // 16), holding)

    def commit(self, digests: bytes, holding: Holding, reason: bytes | None = None) -> calls.Call:
        """Return a call of ``commit``, or of ``reject`` for a reason."""
        return claims.commit(self.config, KEYS, self.view, "-", digests, holding, reason)

    def release(self, digests: bytes, *, failed: bool = False) -> calls.Call:
        """Return a call of ``release``, to a delay holder."""
        delayed = claims.new_delay_holder()
        uid = self.config.uid
        return claims.release(uid, KEYS, "-", digests, claims.NO_HOLDER, delay_holder=delayed, failed=failed)

    def reclaim(self, holding: Holding, count: int = claims.RECLAIMED_A_CALL) -> calls.Call:
        """Return a call of ``reclaim``."""
        return claims.reclaim(self.config.uid, KEYS, "-", holding, count)

    def time(self, *made: calls.Call) -> float:
        """Send calls of one script in a pipeline; return the server time of one of them in us.

        INFO leaves the server's caches cold, so short calls are timed many at a time.
        """
        if not self.client.script_exists(made[0].script.sha1)[0]:
            self.client.script_load(made[0].script.source)
        before = spent(self.client)
        send(self.client, [call.command() for call in made], len(made))
        return (spent(self.client) - before) / len(made)

    def die(self, *holdings: Holding) -> None:
        """Let holders be dead."""
        self.client.zadd(KEYS.holders, {bytes.fromhex(each.holder): number + 1 for number, each in enumerate(holdings)})


def new_holding() -> Holding:
    """Return a holder that is new."""
    return Holding(claims.new_holder(), LEASE)


def older(call: calls.Call, checkout: str) -> calls.Call:
    """Return the same call of the script of another checkout."""
    made = "from urifilter_redis.protocol.scripts import load; print(load('insert', 'blocked', 12).source, end='')"
    environment = os.environ | {"PYTHONPATH": checkout}
    source = subprocess.run(
        [sys.executable, "-c", made], cwd=checkout, env=environment, capture_output=True, text=True, check=True
    ).stdout
    sha1 = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return replace(call, script=Script("insert", source, sha1))


def times(count: int) -> int:
    """Return how many calls of so many items are timed at a time."""
    return SHORT_CALLS if count == 1 else 1


def inserts(bench: Bench, before: str) -> Iterator[Row]:
    """Time ``insert`` without claims, beside an older one, and with claims of which nothing is in flight."""

    def insert(count: int, seen: bytes = b"", script: Script | None = None) -> float:
        made = [bench.items("insert", seen or os.urandom(16 * count)) for _ in range(times(count))]
        return bench.time(*(replace(each, script=script or each.script) for each in made)) / count

    for count in (1, 500):
        bench.fresh(with_claims=False)
        seen = os.urandom(16 * count)
        bench.time(bench.items("insert", seen))
        old = older(bench.items("insert", seen), before).script if before else None
        for what, again in (("new", b""), ("seen", seen)):
            ways = {f"insert, {what}, before": partial(insert, count, again, old)} if old else {}
            yield from rows(turns(ways | {f"insert, {what}": partial(insert, count, again)}, ROUNDS), count)
        bench.fresh(with_claims=True)
        yield from rows(turns({"insert, new, with claims": partial(insert, count)}, ROUNDS), count)


def rows(found: dict[str, list[float]], count: int) -> Iterator[Row]:
    """Yield the us an item of some ways, and the ratio of each to the first."""
    first = statistics.median(next(iter(found.values())))
    for way, used in found.items():
        us = statistics.median(used)
        yield {"way": way, "items": count, "us an item": us, "ratio": us / first}


def of_claims(bench: Bench) -> Iterator[Row]:
    """Time what is done with an item, from its claim to its commit."""
    bench.fresh(with_claims=True)
    for count in (1, 100, 250):
        holding, other = new_holding(), new_holding()
        found: defaultdict[str, list[float]] = defaultdict(list)

        def note(name: str, *made: calls.Call, items: int = count, into: defaultdict[str, list[float]] = found) -> None:
            into[name].append(bench.time(*made) / items)

        for _ in range(ROUNDS):
            for failed in (False, True):
                some = [os.urandom(16 * count) for _ in range(times(count))]
                note("claim", *(bench.claim(each, holding) for each in some))
                bench.die(holding)
                taken = min(count, claims.RECLAIMED_A_CALL)
                note("reclaim", *[bench.reclaim(other, taken)] * len(some), items=taken)
                note("release", *(bench.release(each, failed=failed) for each in some))
                note(
                    "claim of what failed" if failed else "claim of it", *(bench.claim(each, holding) for each in some)
                )
                reason = b"answers 500" if failed else None
                note("reject" if failed else "commit", *(bench.commit(each, holding, reason) for each in some))
        for name, used in found.items():
            yield {"way": name, "items": count, "us an item": statistics.median(used)}


def longest(bench: Bench) -> Iterator[Row]:
    """Yield the longest of some calls of each of the worst kinds, ms."""
    bench.fresh(with_claims=True)
    worst: defaultdict[str, list[float]] = defaultdict(list)

    def note(name: str, call: calls.Call) -> None:
        worst[name].append(bench.time(call) / 1000)

    for _ in range(10):
        digests, dead = os.urandom(16 * 500), [new_holding() for _ in range(500)]
        for number, holding in enumerate(dead):
            bench.time(bench.claim(digests[16 * number :][:16], holding))
        bench.die(*dead)
        one, two = new_holding(), new_holding()
        note("reclaim of 100 of 100 dead", bench.reclaim(one, 100))
        note("claim of 500, of 400 dead and in flight", bench.claim(digests, two))
        note("release of 500", bench.release(digests))
        note("claim of 500 of a delay holder", bench.claim(digests, two))
        note("commit of 500", bench.commit(digests, two))
        for count, size, kept in ((4, "64 KiB", LONG), (250, "1 KiB", LONG[:1024])):
            some = os.urandom(16 * count)
            note(f"claim of {count} of {size}", bench.claim(some, one, kept))
            bench.die(one)
            note(f"reclaim of {min(count, 100)} of {size}", bench.reclaim(two, 100))
            note(f"commit of {count} of {size}", bench.commit(some, two))
    for name, used in worst.items():
        yield {"way": name, "ms": statistics.median(used), "longest": max(used)}


def many_in_flight(bench: Bench, in_flight: int) -> Iterator[str]:
    """Put items into the hands of 100 holders, let one die, and hand on all that it has; then time the beats."""
    bench.fresh(with_claims=True)
    holdings, before = [new_holding() for _ in range(HOLDERS)], bench.client.info("memory")["used_memory"]
    for number in range(in_flight // claims.CLAIMS_A_CALL):
        bench.client.execute_command(*bench.claim(os.urandom(16 * 250), holdings[number % HOLDERS]).command())
    memory = bench.client.info("memory")["used_memory"] - before
    yield f"{in_flight:,} in flight of {HOLDERS}: {memory / in_flight:.0f} bytes an item"
    beats = [bench.time(*[claims.beat(bench.config.uid, KEYS, each)] * SHORT_CALLS) for each in holdings[::5]]
    bench.die(holdings[0])
    used, other = [], new_holding()
    while bench.client.zscore(KEYS.holders, bytes.fromhex(holdings[0].holder)) is not None:
        used.append(bench.time(bench.reclaim(other)))
    yield f"all of one dead holder: {len(used)} calls, longest {max(used) / 1000:.2f} ms"
    beat = statistics.median(beats)
    for shards in (18, 256):
        seconds = claims.default_lease(shards) / 3
        share = HOLDERS * shards * beat / 1e6 / seconds
        yield f"beats of {HOLDERS} in {shards} shards, {beat:.1f} us each: {share:.2%} of a server"


def main(before: str = "", in_flight: int = 1_000_000, server: Servers = ("redis", "valkey")) -> Iterator[str | Row]:
    """Yield all rows.

    Options:
        before: a checkout of a release before claims
    """
    for name in server:
        yield name
        with servers.server(name) as client:
            bench = Bench(client)
            yield from inserts(bench, before)
            yield from of_claims(bench)
            yield from longest(bench)
            yield from many_in_flight(bench, in_flight)
