"""Measure what it costs to believe the embedded server's answers.

Its answers count once a PING after them is answered, too (``docs/decisions/019-embedded-valkey.md``). The same inserts
take turns without that PING, with it, and with ``appendfsync always`` in its place, until the fastest tries agree. The
table has the fastest try in us of wall time a call, and its ratio to that without the PING. Machines are noisy: read
ratios. The server is one of its own, in a folder that is removed.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial

import redis

from bench.kbest import Rule, best_of, race
from bench.runner import Row
from bench.urls import url
from urifilter_redis import UriFilter

#: Whether a PING follows, and ``appendfsync``.
WAYS = {"no PING": (False, "no"), "PING": (True, "no"), "always": (False, "always")}

#: Items a call, and calls of one try.
CALLS = {1: 300, 500: 10}


def measure(news: UriFilter, server: redis.Redis, size: int, numbers: Iterator[int], way: str) -> float:
    """Insert in one way; return us of wall time a call."""
    news._session.confirms, appendfsync = WAYS[way]  # noqa: SLF001 - no caller may choose it
    server.config_set("appendfsync", appendfsync)
    batches = [[url(number) for number in itertools.islice(numbers, size)] for _ in range(CALLS[size])]
    begin = time.perf_counter()
    for batch in batches:
        news.insert_many(batch)
    return (time.perf_counter() - begin) / CALLS[size] * 1e6


def main(tries: int = 40) -> Iterator[Row]:
    """Yield a row for each kind of call and each way.

    Options:
        tries: the most of each way
    """
    rule, dice = Rule(tries=tries), random.Random(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= {"URIFILTER_DATA_DIR": folder, "URIFILTER_REDIS_URL": ""}
        with (
            UriFilter.create("news", capacity=20_000_000, large=True) as news,
            redis.Redis(unix_socket_path=news.server.partition("://")[2]) as server,
        ):
            new, seen = itertools.count(), itertools.cycle(range(500))
            for kind, size, numbers in (("new", 1, new), ("new", 500, new), ("seen", 500, seen)):
                ways = {way: partial(measure, news, server, size, numbers, way) for way in WAYS}
                least = {way: best_of(found, rule).value for way, found in race(ways, float, rule, dice).items()}
                for way, value in least.items():
                    row: Row = {"kind": kind, "way": way, "items a call": size, "us a call": value}
                    yield row | {"ratio": value / least["no PING"]}
