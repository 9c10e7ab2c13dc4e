"""Measure the scripts of claims: ``python bench/claims.py [--before CHECKOUT] [--server NAME …] [--in-flight N]``.

All figures are server time, of INFO commandstats: ``insert`` without claims, beside the script of another checkout;
``insert`` of a filter with claims that has nothing in flight; ``claim``, ``commit``, ``release`` and ``reclaim`` of
items of 80 bytes; ``claim`` and ``reject`` of items that failed (the dead letters are full: old ones go); long calls;
a million items in flight among 100 holders, of which one is dead; the beats. The ways of a row take turns in each
round, and the table has the medians. Machines are noisy: read ratios.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from servers import server

from urifilter_redis import UriFilter
from urifilter_redis.protocol import calls, claims
from urifilter_redis.protocol.claims import Holding
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import View
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.protocol.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from urifilter_redis.protocol.config import Config

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
        url = f"unix://{self.client.connection_pool.connection_kwargs['path']}"
        with UriFilter.create("news", capacity=CAPACITY, shards=1, hash="md5", redis=url) as news:
            self.config = news.config
        self.learn()
        for _ in range(CAPACITY // 4 // 500):
            self.time(self.items("insert", self.new(500)))
        if with_claims:
            item, holding = self.new(1), new_holding()
            self.time(self.claim(item, holding))
            self.learn()
            self.time(claims.commit(self.config, KEYS, self.view, "-", item, holding))

    def learn(self) -> None:
        """Learn the slices, and whether there are claims."""
        self.view = View.from_meta(to_mapping(self.client.hgetall(KEYS.meta)), "news")

    def new(self, count: int) -> bytes:
        """Return digests that nobody has seen."""
        return os.urandom(16 * count)

    def items(self, command: str, digests: bytes) -> calls.Call:
        """Return a call of a command about items."""
        return calls.items(command, self.config, KEYS, self.view, "-", digests)

    def claim(self, digests: bytes, holding: Holding, kept: bytes = KEPT) -> calls.Call:
        """Return a call of ``claim``."""
        return claims.claim(self.config, KEYS, self.view, "-", digests, [kept] * (len(digests) // 16), holding)

    def time(self, *made: calls.Call) -> float:
        """Send calls of one script in a pipeline; return the server time of one of them in us.

        INFO leaves the server's caches cold, so short calls are timed many at a time.
        """
        if not self.client.script_exists(made[0].script.sha1)[0]:
            self.client.script_load(made[0].script.source)
        pipeline = self.client.pipeline(transaction=False)
        for call in made:
            pipeline.execute_command(*call.command())
        before = self._spent()
        pipeline.execute()
        return (self._spent() - before) / len(made)

    def die(self, *holdings: Holding) -> None:
        """Let holders be dead."""
        self.client.zadd(KEYS.holders, {bytes.fromhex(each.holder): number + 1 for number, each in enumerate(holdings)})

    def _spent(self) -> float:
        return float(self.client.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"])


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


def side_by_side(ways: dict[str, Callable[[], float]], count: int) -> None:
    """Print the us an item of some ways that take turns, and the ratio of each to the first."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            found[name].append(way() / count)
    first = next(iter(found.values()))
    for name, spent in found.items():
        ratio = statistics.median(spent) / statistics.median(first)
        print(f"  {name:45} {count:4} items  {statistics.median(spent):7.2f} us an item  {ratio:5.2f}")


def inserts(bench: Bench, before: str | None) -> None:
    """Time ``insert`` without claims, beside an older one, and with claims of which nothing is in flight."""
    for count in (1, 500):
        bench.fresh(with_claims=False)
        for what in ("new", "seen"):
            seen = bench.new(count)
            bench.time(bench.items("insert", seen))

            def call(of: str = what, size: int = count, again: bytes = seen) -> calls.Call:
                return bench.items("insert", bench.new(size) if of == "new" else again)

            def made(many: Callable[[], calls.Call] = call, size: int = count) -> list[calls.Call]:
                return [many() for _ in range(times(size))]

            ways = {f"insert, {what}": lambda made=made: bench.time(*made())}
            if before:
                script = older(call(), before).script
                ways = {
                    f"insert, {what}, before": lambda made=made, old=script: bench.time(
                        *(replace(each, script=old) for each in made())
                    )
                } | ways
            side_by_side(ways, count)
        bench.fresh(with_claims=True)

        def with_claims(size: int = count) -> float:
            return bench.time(*(bench.items("insert", bench.new(size)) for _ in range(times(size))))

        side_by_side({"insert, new, with claims": with_claims}, count)


def times(count: int) -> int:
    """Return how many calls of so many items are timed at a time."""
    return SHORT_CALLS if count == 1 else 1


def of_claims(bench: Bench) -> None:
    """Time what is done with an item, from its claim to its commit."""
    bench.fresh(with_claims=True)
    for count in (1, 100, 250):
        holding, other = new_holding(), new_holding()
        found: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(ROUNDS):
            for failed in (False, True):
                some = [bench.new(count) for _ in range(times(count))]
                found["claim"].append(bench.time(*(bench.claim(each, holding) for each in some)))
                bench.die(holding)
                taken = min(count, claims.RECLAIMED_A_CALL)
                again = [claims.reclaim(bench.config.uid, KEYS, "-", other, taken)] * len(some)
                found["reclaim"].append(bench.time(*again) * count / taken)
                releases = [
                    claims.release(
                        bench.config.uid,
                        KEYS,
                        "-",
                        each,
                        claims.NO_HOLDER,
                        delay_holder=claims.new_delay_holder(),
                        failed=failed,
                    )
                    for each in some
                ]
                found["release"].append(bench.time(*releases))
                of_it = bench.time(*(bench.claim(each, holding) for each in some))
                found["claim of what failed" if failed else "claim of it"].append(of_it)
                reason = b"answers 500" if failed else None
                ends = (claims.commit(bench.config, KEYS, bench.view, "-", each, holding, reason) for each in some)
                found["reject" if failed else "commit"].append(bench.time(*ends))
        for name, spent in found.items():
            print(f"  {name:45} {count:4} items  {statistics.median(spent) / count:7.2f} us an item")


def longest(bench: Bench) -> None:
    """Print the longest of some calls of each of the worst kinds, ms."""
    bench.fresh(with_claims=True)
    worst: dict[str, list[float]] = {}
    for _ in range(10):
        digests, dead = bench.new(500), [new_holding() for _ in range(500)]
        each = [digests[i : i + 16] for i in range(0, len(digests), 16)]
        for item, holding in zip(each, dead, strict=True):
            bench.time(bench.claim(item, holding))
        bench.die(*dead)
        one, two = new_holding(), new_holding()

        def note(name: str, call: calls.Call) -> None:
            worst.setdefault(name, []).append(bench.time(call) / 1000)

        note("reclaim of 100 of 100 dead", claims.reclaim(bench.config.uid, KEYS, "-", one, 100))
        note("claim of 500, of 400 dead and in flight", bench.claim(digests, two))
        delay_holder = claims.new_delay_holder()
        call = claims.release(bench.config.uid, KEYS, "-", digests, claims.NO_HOLDER, delay_holder=delay_holder)
        note("release of 500", call)
        note("claim of 500 of a delay holder", bench.claim(digests, two))
        note("commit of 500", claims.commit(bench.config, KEYS, bench.view, "-", digests, two))
        some = bench.new(4)
        note("claim of 4 of 64 KiB", bench.claim(some, one, LONG))
        bench.die(one)
        note("reclaim of 4 of 64 KiB", claims.reclaim(bench.config.uid, KEYS, "-", two, 100))
        note("commit of 4 of 64 KiB", claims.commit(bench.config, KEYS, bench.view, "-", some, two))
        middle = bench.new(250)
        note("claim of 250 of 1 KiB", bench.claim(middle, one, LONG[:1024]))
        bench.die(one)
        note("reclaim of 100 of 1 KiB", claims.reclaim(bench.config.uid, KEYS, "-", two, 100))
        note("commit of 250 of 1 KiB", claims.commit(bench.config, KEYS, bench.view, "-", middle, two))
    for name, spent in worst.items():
        print(f"  {name:45} {statistics.median(spent):6.2f} ms, longest {max(spent):6.2f}")


def many_in_flight(bench: Bench, in_flight: int) -> None:
    """Put items into the hands of 100 holders, let one die, and hand on all that it has; then time the beats."""
    bench.fresh(with_claims=True)
    holdings, before = [new_holding() for _ in range(HOLDERS)], bench.client.info("memory")["used_memory"]
    for number in range(in_flight // claims.CLAIMS_A_CALL):
        bench.client.execute_command(*bench.claim(bench.new(250), holdings[number % HOLDERS]).command())
    memory = bench.client.info("memory")["used_memory"] - before
    print(f"  {in_flight:,} in flight of {HOLDERS}: {memory / in_flight:.0f} bytes an item")
    beats = [bench.time(*[claims.beat(bench.config.uid, KEYS, each)] * SHORT_CALLS) for each in holdings[::5]]
    bench.die(holdings[0])
    spent, other = [], new_holding()
    while bench.client.zscore(KEYS.holders, bytes.fromhex(holdings[0].holder)) is not None:
        spent.append(bench.time(claims.reclaim(bench.config.uid, KEYS, "-", other, claims.RECLAIMED_A_CALL)))
    print(f"  all of one dead holder: {len(spent)} calls, longest {max(spent) / 1000:.2f} ms")
    beat = statistics.median(beats)
    for shards in (18, 256):
        seconds = claims.default_lease(shards) / 3
        share = HOLDERS * shards * beat / 1e6 / seconds
        print(f"  beats of {HOLDERS} in {shards} shards, {beat:.1f} us each: {share:.2%} of a server")


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="CHECKOUT", help="a checkout of a release before claims")
    parser.add_argument("--in-flight", type=int, default=1_000_000)
    parser.add_argument("--server", nargs="+", choices=["redis", "valkey"], default=["redis", "valkey"])
    options = parser.parse_args()
    for name in options.server:
        print(name)
        with server(name) as client:
            bench = Bench(client)
            inserts(bench, options.before)
            of_claims(bench)
            longest(bench)
            many_in_flight(bench, options.in_flight)


if __name__ == "__main__":
    main()
