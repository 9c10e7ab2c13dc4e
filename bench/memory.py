"""Measure the memory of a million seen URLs, side by side: ``python bench/memory.py [--items N] [--server NAME …]``.

The figures are the growth of ``used_memory`` in INFO, MB, and bytes an item: of a set of URLs of 66 bytes, of their
SHA-1s as 40 hex digits, and of their MD5s as 16 bytes; of filters at 1 in 10,000; and of RedisBloom, server ``bloom``.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from servers import NAMES, address, server
from urls import url

from bench import ERROR_RATE
from urifilter_redis import UriFilter

if TYPE_CHECKING:
    import redis

STEP = 10_000


def sha1(number: int) -> bytes:
    """Return the fingerprint of a URL as crawlers keep it: 40 hex digits."""
    return hashlib.sha1(url(number)).hexdigest().encode()


def md5(number: int) -> bytes:
    """Return a digest of 16 bytes."""
    return hashlib.md5(url(number)).digest()


def set_of(client: redis.Redis, count: int, member: Callable[[int], bytes]) -> None:
    """Fill a set."""
    for start in range(0, count, STEP):
        client.sadd("set", *map(member, range(start, start + STEP)))


def filter_of(client: redis.Redis, count: int, layout: str) -> None:
    """Make a filter and insert into it; its bitmaps are there from the beginning."""
    name = f"{layout}-{count}"
    with UriFilter.create(name, capacity=count, error_rate=ERROR_RATE, layout=layout, redis=address(client)) as news:
        news.insert_many(map(url, range(STEP)))


def bloom(client: redis.Redis, count: int) -> None:
    """Make a filter of RedisBloom."""
    client.execute_command("BF.RESERVE", "bloom", ERROR_RATE, count)


WAYS: dict[str, Callable[[redis.Redis, int], None]] = {
    "set of URLs": lambda client, count: set_of(client, count, url),
    "set of SHA-1s in hex": lambda client, count: set_of(client, count, sha1),
    "set of MD5s, 16 bytes": lambda client, count: set_of(client, count, md5),
    "blocked": lambda client, count: filter_of(client, count, "blocked"),
    "classic": lambda client, count: filter_of(client, count, "classic"),
}


def measured(name: str, fill: Callable[[redis.Redis, int], None], count: int) -> int:
    """Return the growth of the server's memory, bytes. A filter's scripts, which all filters share, are not counted."""
    with server(name) as client:
        for layout in ("blocked", "classic"):
            filter_of(client, STEP, layout)
        before = client.info("memory")["used_memory"]
        fill(client, count)
        return int(client.info("memory")["used_memory"]) - int(before)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--server", nargs="+", choices=NAMES, default=["redis", "valkey"])
    options = parser.parse_args()
    for name in options.server:
        ways = WAYS | ({"RedisBloom": bloom} if name == "bloom" else {})
        for label, fill in ways.items():
            used = measured(name, fill, options.items)
            print(f"{name:8} {label:22} {used / 1e6:7.1f} MB {used / options.items:7.1f} bytes an item")


if __name__ == "__main__":
    main()
