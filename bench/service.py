"""Measure the HTTP service: ``python bench/service.py [--seconds N] [--server redis valkey]``.

Processes insert URIs, half of them new, in batches of 1, 100 and 1000: with the library, and through the SDK with 1 and
2 workers. It prints URIs a second of all processes together (wall time), the ratio to the library's figure, and the
server's time a URI (INFO commandstats). Machines are noisy, and all processes share this one: read ratios.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from servers import server

from urifilter_redis import UriFilter
from urifilter_redis.sdk import FilterAPIClient

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

BATCHES = (1, 100, 1000)
WORKERS = (1, 2)
CLIENTS = (1, 2)


def ask_for(open_: Callable[[], Callable[[list[str]], object]], batch: int, seconds: float, seed: int) -> int:
    """Insert batches for some seconds; return the number of URIs."""
    dice, insert, asked = random.Random(seed), open_(), 0
    insert(["warm up"])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        insert([f"https://example.com/{dice.randrange(1 << 40) if i % 2 else i}" for i in range(batch)])
        asked += batch
    return asked


def by_library(url: str) -> Callable[[list[str]], object]:
    """Return a function that inserts with the library."""
    return UriFilter.open("news", redis=url).insert_many


def by_service(url: str) -> Callable[[list[str]], object]:
    """Return a function that inserts through the service."""
    return functools.partial(FilterAPIClient(url).insert_many, "news")


def measure(
    admin: redis.Redis, open_: Callable[[], Callable[[list[str]], object]], clients: int, batch: int, seconds: float
) -> tuple[float, float]:
    """Return URIs a second (wall time), and the server's microseconds a URI."""
    admin.config_resetstat()
    with multiprocessing.Pool(clients) as pool:
        jobs = [(open_, batch, seconds, time.time_ns() + client) for client in range(clients)]
        asked = sum(pool.starmap(ask_for, jobs))
    return asked / seconds, admin.info("commandstats")["cmdstat_evalsha"]["usec"] / asked


def serving(url: str, workers: int, log: Path, *more: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start the service with more options; return it and its address."""
    command = [sys.executable, "-m", "urifilter_redis.cli", "serve", "--port", "0", "--redis", url, *more]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, "--workers", str(workers)], stderr=file)
    while log.read_text().count("Application startup complete") < workers:
        time.sleep(0.05)
    address = log.read_text().split("listens at ")[1].split()[0]
    return process, address


def main() -> None:
    """Measure library and service on each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--server", nargs="+", default=["redis"])
    options = parser.parse_args()
    for kind in options.server:
        with server(kind) as admin, tempfile.TemporaryDirectory() as folder:
            url = f"unix://{admin.connection_pool.connection_kwargs['path']}"
            UriFilter.create("news", redis=url, capacity=100_000_000).close()
            print(f"\n{kind}\n{'way':22} {'clients':>7} {'batch':>6} {'URIs/s':>9} {'ratio':>6} {'Redis us':>9}")
            library = {}
            for clients in CLIENTS:
                for batch in BATCHES:
                    rate, usec = measure(admin, functools.partial(by_library, url), clients, batch, options.seconds)
                    library[clients, batch] = rate
                    print(f"{'library':22} {clients:7} {batch:6} {rate:9,.0f} {1:6.2f} {usec:9.2f}")
            for workers in WORKERS:
                process, address = serving(url, workers, Path(folder) / f"log{workers}")
                for clients in CLIENTS:
                    for batch in BATCHES:
                        open_ = functools.partial(by_service, address)
                        rate, usec = measure(admin, open_, clients, batch, options.seconds)
                        ratio = rate / library[clients, batch]
                        way = f"service, {workers} worker{'s' * (workers > 1)}"
                        print(f"{way:22} {clients:7} {batch:6} {rate:9,.0f} {ratio:6.2f} {usec:9.2f}")
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
