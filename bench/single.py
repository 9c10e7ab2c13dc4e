"""Measure calls with one item, side by side, in one run: ``python bench/single.py [--rounds N] [--server NAME …]``.

Wall time: one server; each round has so many calls of every kind in turn, and the table has the median of the rounds
and the median of each round's ratio to redis-py's SADD of the same items. Client and server have a processor each,
where the system can say so: on one and the same a round trip takes a quarter of the time. Server time: one item a call,
pipelined by 100, from the time of EVALSHA in INFO commandstats, beside ``bare.lua``, which only inserts. Machines are
noisy: read ratios, not microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from servers import server

from urifilter_redis import AsyncUriFilter, UriFilter
from urifilter_redis.bloom.digest import hasher, shard_of
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.call_ids import CallIds
from urifilter_redis.protocol.keys import FilterKeys

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


@contextlib.contextmanager
def apart(process: int) -> Iterator[None]:
    """Keep this process and another one on processors of their own."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(process, {max(allowed)})
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def wall_time(name: str, rounds: int) -> None:
    """Print the rows of one server: a kind's microseconds and its ratio to SADD, for each client and transport."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with server(name, port) as admin, apart(admin.info("server")["process_id"]):
        path = admin.connection_pool.connection_kwargs["path"]
        UriFilter.create("single", capacity=CAPACITY, shards=SHARDS, redis=f"unix://{path}").close()
        ways = {"TCP": f"redis://127.0.0.1:{port}", "unix socket": f"unix://{path}"}
        for transport, address in ways.items():
            for client, found in {
                "blocking": blocking(address, rounds),
                "asyncio": asyncio.run(awaited(address, rounds)),
            }.items():
                for kind, times in found.items():
                    ratio = statistics.median(map(lambda a, b: a / b, times, found["SADD"]))
                    print(f"{name:8} {transport:12} {client:9} {kind:13} {statistics.median(times):7.1f} {ratio:6.2f}")


def ours(news: UriFilter, command: str, *, call_id: bool) -> Callable[[list[bytes]], list[tuple[Any, ...]]]:
    """Return a function that makes the commands of one pipeline, one digest a command."""
    ids, shards = CallIds(), news.config.shards
    keys = FilterKeys("urifilter", "single", shards)

    def commands(digests: list[bytes]) -> list[tuple[Any, ...]]:
        drawn = [ids.draw() for _ in digests] if call_id else []
        names = [str(each) for each in drawn] or [calls.NO_CALL_ID] * len(digests)
        made = []
        for name, digest in zip(names, digests, strict=True):
            shard = shard_of(digest, shards)
            call = calls.items(command, news.config, keys.shard(shard), news.view(shard), name, digest)
            made.append(call.command())
        for each in drawn:
            ids.release(each)
        return made

    return commands


def bare(client: redis.Redis, news: UriFilter) -> Callable[[list[bytes]], list[tuple[Any, ...]]]:
    """Do as ``ours`` by ``bare.lua``, with as many bitmaps of the same size as the filter."""
    sha1, shards = client.script_load((Path(__file__).parent / "bare.lua").read_text()), news.config.shards
    for shard in range(shards):
        client.setrange(f"bare:{shard}", news.config.bytes - 1, b"\0")

    def commands(digests: list[bytes]) -> list[tuple[Any, ...]]:
        return [("EVALSHA", sha1, "1", f"bare:{shard_of(d, shards)}", d, str(news.config.units)) for d in digests]

    return commands


def server_time(name: str, rounds: int) -> None:
    """Print the rows of one server: microseconds of server time a call, new and seen, and the ratio to bare.lua."""
    with server(name) as client:
        path = client.connection_pool.connection_kwargs["path"]
        news = UriFilter.create("single", capacity=CAPACITY, shards=SHARDS, redis=f"unix://{path}")
        for load in (news.insert, news.contains):
            load("load the script")
        ways = {
            "bare.lua": bare(client, news),
            "insert, call id": ours(news, "insert", call_id=True),
            "insert, no call id": ours(news, "insert", call_id=False),
            "contains": ours(news, "contains", call_id=False),
        }
        hash_all = hasher("mmh3", "1")
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for items in itertools.islice(uris("server"), rounds):
            for way, commands in ways.items():
                digests = hash_all(f"{way}{item}".encode() for item in items)
                found[way].append((usec(client, commands, digests), usec(client, commands, digests)))
        news.close()
    reference = [statistics.median(times) for times in zip(*found["bare.lua"], strict=True)]
    for way, pairs in found.items():
        cells = [statistics.median(times) for times in zip(*pairs, strict=True)]
        shown = "  ".join(f"{cell:6.2f} ({cell / bare:.2f})" for cell, bare in zip(cells, reference, strict=True))
        print(f"{name:8} {way:20} {shown}")


def usec(client: redis.Redis, commands: Callable[[list[bytes]], list[tuple[Any, ...]]], digests: list[bytes]) -> float:
    """Send digests in pipelines; return the microseconds of server time of one call."""
    client.config_resetstat()
    for start in range(0, len(digests), PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for command in commands(digests[start : start + PIPELINE]):
            pipeline.execute_command(*command)
        pipeline.execute()
    return client.info("commandstats")["cmdstat_evalsha"]["usec"] / len(digests)


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--server", nargs="+", choices=["redis", "valkey"], default=["redis", "valkey"])
    options = parser.parse_args()
    print(f"{CALLS} calls of each kind a round, {options.rounds} rounds, us a call, wall time (ratio to SADD)")
    for name in options.server:
        wall_time(name, options.rounds)
    print(f"\nServer time of one item a call, pipelined by {PIPELINE}, us: new, seen (ratio to bare.lua)")
    for name in options.server:
        server_time(name, options.rounds)


if __name__ == "__main__":
    main()
