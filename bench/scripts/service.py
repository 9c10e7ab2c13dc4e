"""Measure the HTTP service.

Processes insert URIs, half of them new, in batches of 1, 100 and 1000: with the library, and through the SDK with 1 and
2 workers. It prints URIs a second of all processes together (wall time), the ratio to the library's figure, and the
server's time a URI (INFO commandstats). Machines are noisy, and all processes share this one: read ratios.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product

from bench import servers
from bench.runner import Row, Servers
from bench.usage import spent
from urifilter_redis import UriFilter
from urifilter_redis.sdk import FilterAPIClient

BATCHES = (1, 100, 1000)
WORKERS = (1, 2)
CLIENTS = (1, 2)


def ask_for(connect: Callable[[], UriFilter | FilterAPIClient], batch: int, seconds: float, seed: int) -> int:
    """Insert batches for some seconds, with the library or through the service; return the number of URIs."""
    dice, client, asked = random.Random(seed), connect(), 0
    insert = partial(client.insert_many, "news") if isinstance(client, FilterAPIClient) else client.insert_many
    insert(["warm up"])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        insert([f"https://example.com/{dice.randrange(1 << 40) if i % 2 else i}" for i in range(batch)])
        asked += batch
    return asked


def main(seconds: float = 3, server: Servers = ("redis",)) -> Iterator[Row]:
    """Measure library and service on each server."""
    for kind in server:
        with servers.server(kind) as admin, ExitStack() as services:
            url = servers.address(admin)
            UriFilter.create("news", redis=url, capacity=100_000_000).close()
            library: dict[tuple[int, int], float] = {}
            for workers in (0, *WORKERS):
                services.close()  # the one before
                connect = partial(UriFilter.open, "news", redis=url)
                if workers:
                    connect = partial(FilterAPIClient, services.enter_context(servers.service(url, workers))[1])
                for clients, batch in product(CLIENTS, BATCHES):
                    before = spent(admin)
                    with multiprocessing.Pool(clients) as pool:
                        jobs = [(connect, batch, seconds, time.time_ns() + client) for client in range(clients)]
                        asked = sum(pool.starmap(ask_for, jobs))
                    rate = asked / seconds
                    way = f"service, {workers} worker{'s' * (workers > 1)}" if workers else "library"
                    row: Row = {"server": kind, "way": way, "clients": clients, "batch": batch, "URIs/s": rate}
                    ratio = rate / library.setdefault((clients, batch), rate)
                    yield row | {"ratio": ratio, "Redis us": (spent(admin) - before) / asked}
