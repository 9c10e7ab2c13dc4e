"""Measure an open page.

The service has many filters of all retentions, into which a client inserts, and the page asks for the overview every
two seconds, as a browser does. It prints the share of one core that the service and the server take, with the page and
without it (Linux only). The client's calls are the same in both, so the difference is the page's.
"""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from bench import servers
from bench.runner import Row, Servers
from bench.usage import cpu_of_process
from urifilter_redis import UriFilter

RETENTIONS = ("forever", "growing", "ring", "rolling")
TIMED = {"slices": 30, "period": "1d"}

#: Seconds between two requests of the page.
POLL_EVERY = 2.0

#: Seconds after the service's start that are not measured.
SETTLING = 5.0


def make(url: str, count: int) -> list[UriFilter]:
    """Make filters of all retentions, of 100,000 items each."""
    made = []
    for number in range(count):
        retention = RETENTIONS[number % len(RETENTIONS)]
        timed = TIMED if retention in {"ring", "rolling"} else {}
        made.append(UriFilter.create(f"filter-{number}", redis=url, capacity=100_000, retention=retention, **timed))
        made[-1].insert_many(f"https://example.com/{number}/{item}" for item in range(1000))
    return made


def shares(processes: Sequence[int], filters: Sequence[UriFilter], seconds: float, page: str | None) -> list[float]:
    """Return the share of a core that each process takes, while the page is open or not."""
    before, begin = [cpu_of_process(each) for each in processes], time.monotonic()
    for turn in itertools.count(1):
        for number, each in enumerate(filters[turn % 10 :: 10]):
            each.insert(f"https://example.com/{page}/{turn}/{number}")
        if page is not None:
            urllib.request.urlopen(page).read()
        left = begin + turn * POLL_EVERY - time.monotonic()
        time.sleep(max(0.0, left))
        if turn * POLL_EVERY >= seconds:
            break
    passed = time.monotonic() - begin
    return [(cpu_of_process(each) - taken) / passed for each, taken in zip(processes, before, strict=True)]


def main(filters: int = 60, seconds: float = 120, server: Servers = ("redis",)) -> Iterator[Row]:
    """Measure the page on each server."""
    for kind in server:
        with servers.server(kind) as admin, ExitStack() as opened:
            url = servers.address(admin)
            made = [opened.enter_context(each) for each in make(url, filters)]
            process, address = opened.enter_context(servers.service(url))
            time.sleep(SETTLING)
            processes = [process, admin.info("server")["process_id"]]
            for label, page in (("no page", None), ("open page", f"{address}/v1/overview")):
                service, redis = shares(processes, made, seconds, page)
                row: Row = {"server": kind, "way": label, "filters": filters}
                yield row | {"service": f"{service:.2%} of a core", "redis": f"{redis:.2%}"}
