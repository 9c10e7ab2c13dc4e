"""Measure the memory of a million seen URLs, side by side.

The figures are the growth of ``used_memory`` in INFO, MB, and bytes an item: of a set of URLs of 66 bytes, of their
SHA-1s as 40 hex digits, and of their MD5s as 16 bytes; of filters at 1 in 10,000; and of RedisBloom, server ``bloom``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

import redis

from bench import servers
from bench.runner import Row, Servers
from bench.urls import url
from urifilter_redis import UriFilter

STEP, ERROR_RATE = 10_000, 1e-4


def set_of(member: Callable[[int], bytes], client: redis.Redis, count: int) -> None:
    """Fill a set."""
    for start in range(0, count, STEP):
        client.sadd("set", *map(member, range(start, start + STEP)))


def filter_of(layout: str, client: redis.Redis, count: int) -> None:
    """Make a filter and insert into it; its bitmaps are there from the beginning."""
    made = {"capacity": count, "error_rate": ERROR_RATE, "layout": layout, "redis": servers.address(client)}
    with UriFilter.create(f"{layout}-{count}", **made) as news:
        news.insert_many(map(url, range(STEP)))


def bloom(client: redis.Redis, count: int) -> None:
    """Make a filter of RedisBloom."""
    client.execute_command("BF.RESERVE", "bloom", ERROR_RATE, count)


WAYS: dict[str, Callable[[redis.Redis, int], None]] = {
    "set of URLs": partial(set_of, url),
    "set of SHA-1s in hex": partial(set_of, lambda number: hashlib.sha1(url(number)).hexdigest().encode()),
    "set of MD5s, 16 bytes": partial(set_of, lambda number: hashlib.md5(url(number)).digest()),
    "blocked": partial(filter_of, "blocked"),
    "classic": partial(filter_of, "classic"),
}


def main(items: int = 1_000_000, server: Servers = ("redis", "valkey")) -> Iterator[Row]:
    """Yield the table. A filter's scripts, which all filters share, are not counted."""
    for name in server:
        for way, fill in (WAYS | ({"RedisBloom": bloom} if name == "bloom" else {})).items():
            with servers.server(name) as client:
                for layout in ("blocked", "classic"):
                    filter_of(layout, client, STEP)
                before = client.info("memory")["used_memory"]
                fill(client, items)
                used = client.info("memory")["used_memory"] - before
            yield {"server": name, "way": way, "MB": used / 1e6, "bytes an item": used / items}
