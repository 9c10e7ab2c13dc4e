"""Measure what waiting for a replica costs: ``python bench/replicas.py [--rounds N] [--server NAME …]``.

A master and a replica on loopback. One caller inserts new items, one a call and 500 a call, in three ways that take
turns in each round: without a replica, with one that follows, and with ``wait_replicas=1``. The table has the median of
the rounds in us of wall time an item, and the median of each round's ratios to the first way. Machines are noisy: read
ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import statistics
import time
from typing import TYPE_CHECKING

from servers import server

from urifilter_redis import UriFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

CAPACITY = 10_000_000

#: Calls of one round, by items a call.
CALLS = {1: 500, 500: 40}


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def pair(name: str) -> Iterator[tuple[str, str]]:
    """Run a master without a replica and one with a replica; return their addresses."""
    ports = [free_port() for _ in range(3)]
    with server(name, ports[0]), server(name, ports[1]) as master, server(name, ports[2]) as replica:
        master.config_set("repl-diskless-sync-delay", 0)
        replica.replicaof("127.0.0.1", str(ports[1]))
        wait_for(replica)
        yield f"redis://127.0.0.1:{ports[0]}/0", f"redis://127.0.0.1:{ports[1]}/0"


def wait_for(replica: redis.Redis) -> None:
    """Wait until a replica follows its master."""
    while replica.info("replication")["master_link_status"] != "up":
        time.sleep(0.05)


def measure(news: UriFilter, numbers: Iterator[int], size: int) -> float:
    """Insert new items; return us of wall time an item."""
    batches = [[f"https://example.com/{next(numbers)}" for _ in range(size)] for _ in range(CALLS[size])]
    begin = time.perf_counter()
    for batch in batches:
        news.insert_many(batch)
    return (time.perf_counter() - begin) / (CALLS[size] * size) * 1e6


def run(name: str, rounds: int) -> None:
    """Print the rows of one kind of server."""
    numbers = itertools.count()
    with pair(name) as (alone, master), contextlib.ExitStack() as opened:
        addresses = {"no replica": alone, "a replica": master, "wait_replicas=1": f"{master}?wait_replicas=1"}
        ways = {
            label: opened.enter_context(UriFilter.create("news", redis=url, capacity=CAPACITY, large=True))
            for label, url in addresses.items()
        }
        for size in CALLS:
            times: dict[str, list[float]] = {label: [] for label in ways}
            for _ in range(rounds):
                for label, news in ways.items():
                    times[label].append(measure(news, numbers, size))
            for label, found in times.items():
                ratio = statistics.median(map(float.__truediv__, found, times["no replica"]))
                print(f"{name:8} {size:5} {label:16} {statistics.median(found):9.2f} {ratio:6.2f}")


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--server", nargs="+", default=["redis", "valkey"])
    arguments = parser.parse_args()
    print(f"{'server':8} {'batch':>5} {'way':16} {'us/item':>9} {'ratio':>6}")
    for name in arguments.server:
        run(name, arguments.rounds)


if __name__ == "__main__":
    main()
