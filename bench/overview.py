"""Measure an open page: ``python bench/overview.py [--filters N] [--seconds N] [--server redis valkey]``.

The service has many filters of all retentions, into which a client inserts, and the page asks for the overview every
two seconds, as a browser does. It prints the share of one core that the service and the server take, with the page and
without it (Linux only). The client's calls are the same in both, so the difference is the page's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from servers import server
from service import serving

from urifilter_redis import UriFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def seconds_of(process: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shares(processes: Sequence[int], filters: Sequence[UriFilter], seconds: float, page: str | None) -> list[float]:
    """Return the share of a core that each process takes, while the page is open or not."""
    before, begin = [seconds_of(each) for each in processes], time.monotonic()
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
    return [(seconds_of(each) - taken) / passed for each, taken in zip(processes, before, strict=True)]


def main() -> None:
    """Measure the page on each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--server", nargs="+", default=["redis"])
    options = parser.parse_args()
    for kind in options.server:
        with server(kind) as admin, tempfile.TemporaryDirectory() as folder:
            url = f"unix://{admin.connection_pool.connection_kwargs['path']}"
            filters = make(url, options.filters)
            process, address = serving(url, 1, Path(folder) / "log")
            time.sleep(SETTLING)
            processes = [process.pid, admin.info("server")["process_id"]]
            print(f"\n{kind}, {options.filters} filters: share of a core\n{'':12} {'service':>8} {'server':>8}")
            for label, page in (("no page", None), ("open page", f"{address}/v1/overview")):
                found = shares(processes, filters, options.seconds, page)
                print(f"{label:12} {found[0]:8.2%} {found[1]:8.2%}", flush=True)
            process.terminate()
            process.wait()
            for each in filters:
                each.close()


if __name__ == "__main__":
    main()
