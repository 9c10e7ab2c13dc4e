"""Measure many asyncio tasks that ask singly: ``python bench/coalescing.py [--rounds N] [--server NAME …]``.

So many tasks ask about one item after the other. Four ways take turns in each round: redis-py's SADD, this client with
coalescing off, and with it ``insert`` and ``contains``. The table has the median of the rounds in items a second, and
the medians of each round's ratios to SADD and to ``insert`` without coalescing. Items are new in each round, for
``contains`` those just inserted. Client and server have a processor each, where the system can say so. Machines are
noisy: read ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import redis.asyncio
from servers import server
from single import apart

from urifilter_redis import AsyncUriFilter, UriFilter

CAPACITY, TASKS, EACH, SHARDS = 5_000_000, 200, 50, (1, 16)

#: The ways of one round, in their order.
SADD, OFF, ON, SEEN = "SADD", "insert, coalesce=False", "insert", "contains"


async def throughput(call: Callable[[str], Awaitable[object]], prefix: str) -> float:
    """Return items a second when all tasks ask, each about its own items."""

    async def ask(task: int) -> None:
        for number in range(EACH):
            await call(f"https://example.com/{prefix}/{task}/{number}")

    began = time.perf_counter()
    await asyncio.gather(*(ask(task) for task in range(TASKS)))
    return TASKS * EACH / (time.perf_counter() - began)


async def measure(address: str, name: str, rounds: int) -> dict[str, list[float]]:
    """Return, for each way, the items a second of every round."""
    found: dict[str, list[float]] = {SADD: [], OFF: [], ON: [], SEEN: []}
    async with (
        redis.asyncio.Redis.from_url(address, max_connections=TASKS) as client,
        AsyncUriFilter.open(name, redis=address) as news,
        AsyncUriFilter.open(name, redis=address, coalesce=False) as alone,
    ):
        for number in range(rounds):
            await client.delete("members")
            found[SADD].append(await throughput(lambda uri: client.sadd("members", uri), f"sadd/{number}"))
            found[OFF].append(await throughput(alone.insert, f"off/{number}"))
            found[ON].append(await throughput(news.insert, f"on/{number}"))
            found[SEEN].append(await throughput(news.contains, f"on/{number}"))
    return found


def ratio(times: list[float], to: list[float]) -> float:
    """Return the median of each round's ratio."""
    return statistics.median(map(lambda a, b: a / b, times, to))


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--server", nargs="+", choices=["redis", "valkey"], default=["redis", "valkey"])
    options = parser.parse_args()
    print(f"{TASKS} tasks, {EACH} items each, {options.rounds} rounds: items a second, ratio to SADD, to {OFF}")
    for name in options.server:
        with server(name) as admin, apart(admin.info("server")["process_id"]):
            address = f"unix://{admin.connection_pool.connection_kwargs['path']}"
            for shards in SHARDS:
                UriFilter.create(f"s{shards}", capacity=CAPACITY, shards=shards, redis=address).close()
                found = asyncio.run(measure(address, f"s{shards}", options.rounds))
                for way, times in found.items():
                    ratios = f"{ratio(times, found[SADD]):6.2f} {ratio(times, found[OFF]):6.2f}"
                    print(f"{name:7} {shards:3} shards  {way:23} {statistics.median(times):8.0f} {ratios}")


if __name__ == "__main__":
    main()
