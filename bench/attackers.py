"""Measure what others do to a good client of the service: ``python bench/attackers.py [--seconds N] [--attackers N]``.

A client inserts ten URIs at a time under its token, over one connection, without and with attackers: each of them
sends bodies of 4 MiB of nested lists without a token, one after the other. Printed: how long the client's requests
took, and how many the attackers' were. Machines are noisy, and all processes share this one: read ratios.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import statistics
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from servers import server
from service import serving

from urifilter_redis import UriFilter
from urifilter_redis.sdk import FilterAPIClient
from urifilter_redis.service import tokens

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Event

PATH = "/cr-clawr/uri_filter/api/uri_filter"
REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT}  # the latter from a service that is held up
BODY = b'{"filter_typeid":"news","URI_list":[' + b",".join([b"[" * 400 + b"]" * 400] * 5200) + b"]}"


def attack(address: str, stop: Event, answered: SimpleQueue[int]) -> None:
    """Send bodies without a token until it is time to stop."""
    parts, count = urlsplit(address), 0
    while not stop.is_set():
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.request("POST", PATH, BODY)
        assert connection.getresponse().status in REFUSED
        connection.close()
        count += 1
    answered.put(count)


def ask(address: str, token: str, seconds: float) -> list[float]:
    """Return the milliseconds that each request of a good client took."""
    took: list[float] = []
    with FilterAPIClient(address, token) as api:
        api.insert_many("news", ["warm up"])
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            api.insert_many("news", [f"https://example.com/{len(took)}/{i}" for i in range(10)])
            took.append(1000 * (time.perf_counter() - begin))
    return took


def measure(address: str, token: str, attackers: int, seconds: float) -> None:
    """Print a line: with so many attackers."""
    stop, answered = multiprocessing.Event(), multiprocessing.SimpleQueue()  # type: ignore[var-annotated]
    processes = [multiprocessing.Process(target=attack, args=(address, stop, answered)) for _ in range(attackers)]
    for process in processes:
        process.start()
    time.sleep(0.5)
    took = ask(address, token, seconds)
    stop.set()
    attacks = sum(answered.get() for _ in processes)
    for process in processes:
        process.join()
    median, p99 = statistics.median(took), sorted(took)[int(0.99 * len(took))]
    print(f"{attackers:9} {len(took):9} {median:10.1f} {p99:10.1f} {max(took):10.1f} {attacks:9}")


def main() -> None:
    """Measure without attackers, and with them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--attackers", type=int, default=4)
    options = parser.parse_args()
    with server("redis") as admin, tempfile.TemporaryDirectory() as folder:
        url = f"unix://{admin.connection_pool.connection_kwargs['path']}"
        UriFilter.create("news", redis=url, capacity=1_000_000).close()
        token, file = tokens.new(), Path(folder) / "settings.toml"
        file.write_text(tokens.Token("good", tokens.digest(token), ("*",), "write").toml())
        process, address = serving(url, 1, Path(folder) / "log", "--settings", str(file))
        print(f"{'attackers':>9} {'requests':>9} {'median ms':>10} {'p99 ms':>10} {'max ms':>10} {'attacks':>9}")
        try:
            for attackers in (0, options.attackers):
                measure(address, token, attackers, options.seconds)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
