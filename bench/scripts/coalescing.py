"""Measure many asyncio tasks that ask singly.

So many tasks ask about one item after the other. Four ways take turns in each round: redis-py's SADD, this client with
coalescing off, and with it ``insert`` and ``contains``. The table has the median of the rounds in items a second, and
the medians of each round's ratios to SADD and to ``insert`` without coalescing. Items are new in each round, for
``contains`` those just inserted. Client and server have a processor each, where the system can say so. Machines are
noisy: read ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import redis.asyncio

from bench import servers
from bench.runner import Row, Servers, medians
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


def main(rounds: int = 9, server: Servers = ("redis", "valkey")) -> Iterator[str | Row]:
    """Yield all rows."""
    yield f"{TASKS} tasks, {EACH} items each, {rounds} rounds"
    for name in server:
        with servers.server(name) as admin, servers.apart(admin.info("server")["process_id"]):
            address = servers.address(admin)
            for shards in SHARDS:
                UriFilter.create(f"s{shards}", capacity=CAPACITY, shards=shards, redis=address).close()
                found = asyncio.run(measure(address, f"s{shards}", rounds))
                for row in medians(found, "items/s", SADD, OFF):
                    yield {"server": name, "way": row["way"], "shards": shards} | row
