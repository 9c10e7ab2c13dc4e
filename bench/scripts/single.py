"""Measure calls with one item, side by side, in one run.

Wall time: one server; each round has so many calls of every kind in turn, and the table has the median of the rounds
and the median of each round's ratio to redis-py's SADD of the same items. Client and server have a processor each,
where the system can say so: on one and the same a round trip takes a quarter of the time. Server time: one item a call,
pipelined by 100, from the time of EVALSHA in INFO commandstats, beside ``bare.lua``, which only inserts. Machines are
noisy: read ratios, not microseconds.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import redis
import redis.asyncio

from bench import ROOT, servers
from bench.commands import Command, Commands, send
from bench.runner import Row, Servers, medians, turns
from bench.usage import spent
from urifilter_redis import AsyncUriFilter, UriFilter
from urifilter_redis.bloom.digest import hasher, shard_of

CAPACITY, CALLS, PIPELINE = 10_000_000, 200, 100
SHARDS = 2  # so many that each has one bitmap

#: The kinds of calls with the function that makes one, given a redis-py client and a filter.
KINDS: dict[str, Callable[[Any, Any], Callable[[str], Any]]] = {
    "PING": lambda client, _: lambda _uri: client.ping(),
    "SADD": lambda client, _: lambda uri: client.sadd("members", uri),
    "insert, new": lambda _, news: news.insert,
    "insert, seen": lambda _, news: news.insert,
    "contains": lambda _, news: news.contains,
}


def uris(run: str) -> Iterator[list[str]]:
    """Yield the items of one round after the other."""
    numbers = itertools.count()
    while True:
        yield [f"https://example.com/{run}/{number}" for number in itertools.islice(numbers, CALLS)]


def blocking(address: str, rounds: int) -> dict[str, list[float]]:
    """Return, for each kind, the microseconds a call of every round."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with redis.Redis.from_url(address) as client, UriFilter.open("single", redis=address) as news:
        made = {kind: make(client, news) for kind, make in KINDS.items()}
        for items in itertools.islice(uris(f"blocking/{address}"), rounds):
            for kind, call in made.items():
                start = time.perf_counter()
                for item in items:
                    call(item)
                found[kind].append((time.perf_counter() - start) * 1e6 / CALLS)
    return found


async def awaited(address: str, rounds: int) -> dict[str, list[float]]:
    """Do as ``blocking``, awaited."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with (
        redis.asyncio.Redis.from_url(address) as client,
        await AsyncUriFilter.open("single", redis=address) as news,
    ):
        made: dict[str, Callable[[str], Awaitable[object]]] = {kind: make(client, news) for kind, make in KINDS.items()}
        for items in itertools.islice(uris(f"awaited/{address}"), rounds):
            for kind, call in made.items():
                start = time.perf_counter()
                for item in items:
                    await call(item)
                found[kind].append((time.perf_counter() - start) * 1e6 / CALLS)
    return found


def wall_time(name: str, rounds: int) -> Iterator[Row]:
    """Yield the rows of one server: a kind's microseconds and its ratio to SADD, for each client and transport."""
    port = servers.free_port()
    with servers.server(name, port) as admin, servers.apart(admin.info("server")["process_id"]):
        path = servers.address(admin)
        UriFilter.create("single", capacity=CAPACITY, shards=SHARDS, redis=path).close()
        for transport, address in (("TCP", f"redis://127.0.0.1:{port}"), ("unix socket", path)):
            found = {"blocking": blocking(address, rounds), "asyncio": asyncio.run(awaited(address, rounds))}
            for client, times in found.items():
                for row in medians(times, "us", "SADD"):
                    yield {"server": name, "transport": transport, "client": client} | row


def bare(client: redis.Redis, news: UriFilter) -> Callable[[list[bytes]], list[Command]]:
    """Do as ``Commands.singly`` by ``bare.lua``, with as many bitmaps of the same size as the filter."""
    sha1 = client.script_load((ROOT / "bench" / "bare.lua").read_text())
    for shard in range(SHARDS):
        client.setrange(f"bare:{shard}", news.config.bytes - 1, b"\0")
    units = str(news.config.units)
    return lambda digests: [("EVALSHA", sha1, "1", f"bare:{shard_of(d, SHARDS)}", d, units) for d in digests]


def usec(client: redis.Redis, commands: Callable[[list[bytes]], list[Command]], items: Iterator[bytes]) -> list[float]:
    """Send a round's digests, which are new, and again; return the microseconds of server time of one call of each."""
    digests, times = hasher("mmh3", "1")(itertools.islice(items, CALLS)), []
    for _ in ("new", "seen"):
        before = spent(client)
        send(client, commands(digests), PIPELINE)
        times.append((spent(client) - before) / CALLS)
    return times


def server_time(name: str, rounds: int) -> Iterator[Row]:
    """Yield the rows of one server: microseconds of server time a call, new and seen, and the ratio to bare.lua."""
    with ExitStack() as stack:
        client = stack.enter_context(servers.server(name))
        made = {"capacity": CAPACITY, "shards": SHARDS, "redis": servers.address(client)}
        news = stack.enter_context(UriFilter.create("single", **made))
        for load in (news.insert, news.contains):
            load("load the script")
        ways = {
            "bare.lua": bare(client, news),
            "insert, call id": Commands(news).singly,
            "insert, no call id": Commands(news, call_ids=False).singly,
            "contains": Commands(news, "contains", call_ids=False).singly,
        }
        items = {way: map(f"{way}%d".__mod__, itertools.count()) for way in ways}
        found = turns({way: partial(usec, client, ways[way], map(str.encode, items[way])) for way in ways}, rounds)
    reference = [statistics.median(times) for times in zip(*found["bare.lua"], strict=True)]
    for way, pairs in found.items():
        row: Row = {"server": name, "way": way}
        for kind, times, bare_one in zip(("new", "seen"), zip(*pairs, strict=True), reference, strict=True):
            row |= {kind: statistics.median(times), f"{kind}, to bare.lua": statistics.median(times) / bare_one}
        yield row


def main(rounds: int = 50, server: Servers = ("redis", "valkey")) -> Iterator[str | Row]:
    """Yield all rows."""
    yield f"{CALLS} calls of each kind a round, {rounds} rounds, us a call, wall time"
    for name in server:
        yield from wall_time(name, rounds)
    yield f"\nServer time of one item a call, pipelined by {PIPELINE}, us"
    for name in server:
        yield from server_time(name, rounds)
