"""Measure whether an item costs the same on more masters.

The same filter of 12 shards stands on Redis Clusters of 1, 2 and 3 masters. Their servers run on one half of the
cores, the clients on the other half. In turn each cluster gets a round of new items, then the same items again. The
figures are processor time of the main threads of all masters together (INFO cpu) for an item, in microseconds: the
median of the rounds, with the least and the most. If an item costs the same on every number of masters, then N masters
with a core each do N times the work of one, because no master waits for another.

It needs the checkout, and redis-server on the PATH.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Annotated

from support.cluster import Cluster

from bench.runner import Row
from bench.usage import cpu_of
from urifilter_redis import UriFilter

MASTERS = (1, 2, 3)
SHARDS, CAPACITY = 12, 10_000_000
CLIENTS, LISTS, ITEMS = 2, 10, 6000

CORES = sorted(os.sched_getaffinity(0))
THEIRS = CORES[: max(1, len(CORES) // 2)]
OURS = CORES[len(THEIRS) :] or CORES


def insert(url: str, client: int, first: int) -> int:
    """Insert lists of URIs of this client's own; return how many were new."""
    os.sched_setaffinity(0, OURS)
    with UriFilter.open("news", redis=url) as news:
        starts = range(first, first + LISTS * ITEMS, ITEMS)
        return sum(
            sum(news.insert_many([f"https://example.com/{client}/{start + n}" for n in range(ITEMS)]))
            for start in starts
        )


def measure(pool: ProcessPoolExecutor, cluster: Cluster, first: int) -> tuple[float, int]:
    """Return the us of all masters for an item, and how many items were new."""
    clients = [node.client() for node in cluster.nodes]
    begun = sum(map(cpu_of, clients))
    new = sum(pool.map(insert, [cluster.url] * CLIENTS, range(CLIENTS), [first] * CLIENTS))
    taken = sum(map(cpu_of, clients)) - begun
    for each in clients:
        each.close()
    return 1e6 * taken / (CLIENTS * LISTS * ITEMS), new


def main(kind: Annotated[str, ("redis70", "valkey")] = "redis70", rounds: int = 9) -> Iterator[str | Row]:
    """Yield a row for each number of masters."""
    found: dict[tuple[int, str], list[float]] = {}
    with ExitStack() as stack:
        clusters = [stack.enter_context(Cluster(kind, masters=count)) for count in MASTERS]
        pool = stack.enter_context(ProcessPoolExecutor(CLIENTS))
        for cluster in clusters:
            for node in cluster.nodes:
                os.sched_setaffinity(node.process.pid, THEIRS)
            UriFilter.create("news", redis=cluster.url, capacity=CAPACITY, shards=SHARDS).close()
        for number in range(rounds):
            for cluster in clusters:
                for what in ("new", "seen"):
                    cost, new = measure(pool, cluster, number * LISTS * ITEMS)
                    assert (new > 0) == (what == "new")
                    found.setdefault((len(cluster.nodes), what), []).append(cost)
    yield f"{kind}, {SHARDS} shards, lists of {ITEMS:,}, {rounds} rounds; us of the masters an item"
    for count in MASTERS:
        row: Row = {"masters": count}
        for what in ("new", "seen"):
            costs, one = found[count, what], statistics.median(found[MASTERS[0], what])
            middle = statistics.median(costs)
            row |= {
                what: middle,
                f"{what}, least": min(costs),
                f"{what}, most": max(costs),
                f"{what}, of one": middle / one,
            }
        yield row
