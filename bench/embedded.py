"""Measure what it costs to believe the embedded server's answers: ``python bench/embedded.py [--tries N]``.

Its answers count once a PING after them is answered, too (``docs/decisions/019-embedded-valkey.md``). The same inserts
take turns without that PING, with it, and with ``appendfsync always`` in its place, until the fastest tries agree. The
table has the fastest try in us of wall time a call, and its ratio to that without the PING. Machines are noisy: read
ratios. The server is one of its own, in a folder that is removed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import tempfile
import time
from typing import TYPE_CHECKING

import redis
from kbest import Rule, best_of, race
from urls import url

from urifilter_redis import UriFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Whether a PING follows, and ``appendfsync``.
WAYS = {"no PING": (False, "no"), "PING": (True, "no"), "always": (False, "always")}

#: Items a call, and calls of one try.
CALLS = {1: 300, 500: 10}


def tries_of(news: UriFilter, server: redis.Redis, size: int, numbers: Iterator[int]) -> dict[str, Callable[[], float]]:
    """Return for each way a function that inserts and returns us of wall time a call."""

    def measure(way: str) -> float:
        news._session.confirms, appendfsync = WAYS[way]  # noqa: SLF001 - no caller may choose it
        server.config_set("appendfsync", appendfsync)
        batches = [[url(number) for number in itertools.islice(numbers, size)] for _ in range(CALLS[size])]
        begin = time.perf_counter()
        for batch in batches:
            news.insert_many(batch)
        return (time.perf_counter() - begin) / CALLS[size] * 1e6

    return {way: lambda way=way: measure(way) for way in WAYS}  # type: ignore[misc]  # of the default argument


def main() -> None:
    """Print a row for each kind of call and each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=40, help="the most of each way")
    rule, dice = Rule(tries=parser.parse_args().tries), random.Random(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= {"URIFILTER_DATA_DIR": folder, "URIFILTER_REDIS_URL": ""}
        with UriFilter.create("news", capacity=20_000_000, large=True) as news:
            server = redis.Redis(unix_socket_path=news.server.partition("://")[2])
            print(f"{'items a call':14} {'way':8} {'us/call':>9} {'ratio':>6}")
            kinds = [("new", itertools.count()), ("seen", itertools.cycle(range(500)))]
            for size, (kind, numbers) in [(1, kinds[0]), *((500, each) for each in kinds)]:
                tries = race(tries_of(news, server, size, numbers), float, rule, dice)
                least = {way: best_of(found, rule).value for way, found in tries.items()}
                for way, value in least.items():
                    print(f"{f'{size} {kind}':14} {way:8} {value:9.1f} {value / least['no PING']:6.2f}", flush=True)
            server.close()


if __name__ == "__main__":
    main()
