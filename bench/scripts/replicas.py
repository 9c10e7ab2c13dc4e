"""Measure what waiting for a replica costs.

A master and a replica on loopback. One caller inserts new items, one a call and 500 a call, in three ways that take
turns in each round: without a replica, with one that follows, and with ``wait_replicas=1``. The table has the median of
the rounds in us of wall time an item, and the median of each round's ratios to the first way. Machines are noisy: read
ratios.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from functools import partial

from bench import servers
from bench.runner import Row, Servers, medians, turns
from urifilter_redis import UriFilter

CAPACITY = 10_000_000

#: Calls of one round, by items a call.
CALLS = {1: 500, 500: 40}


@contextlib.contextmanager
def pair(name: str) -> Iterator[tuple[str, str]]:
    """Run a master without a replica and one with a replica, which follows; yield their addresses."""
    ports = [servers.free_port() for _ in range(3)]
    with (
        servers.server(name, ports[0]),
        servers.server(name, ports[1]) as master,
        servers.server(name, ports[2]) as replica,
    ):
        master.config_set("repl-diskless-sync-delay", 0)
        replica.replicaof("127.0.0.1", str(ports[1]))
        while replica.info("replication")["master_link_status"] != "up":
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{ports[0]}/0", f"redis://127.0.0.1:{ports[1]}/0"


def measure(news: UriFilter, numbers: Iterator[int], size: int) -> float:
    """Insert new items; return us of wall time an item."""
    batches = [[f"https://example.com/{next(numbers)}" for _ in range(size)] for _ in range(CALLS[size])]
    begin = time.perf_counter()
    for batch in batches:
        news.insert_many(batch)
    return (time.perf_counter() - begin) / (CALLS[size] * size) * 1e6


def main(rounds: int = 20, server: Servers = ("redis", "valkey")) -> Iterator[Row]:
    """Yield the rows of each kind of server."""
    for name in server:
        numbers = itertools.count()
        with pair(name) as (alone, master), contextlib.ExitStack() as opened:
            addresses = {"no replica": alone, "a replica": master, "wait_replicas=1": f"{master}?wait_replicas=1"}
            filters = {
                label: opened.enter_context(UriFilter.create("news", redis=url, capacity=CAPACITY, large=True))
                for label, url in addresses.items()
            }
            for size in CALLS:
                ways = {label: partial(measure, news, numbers, size) for label, news in filters.items()}
                for row in medians(turns(ways, rounds), "us/item", "no replica"):
                    yield {"server": name, "batch": f"{size} a call"} | row
