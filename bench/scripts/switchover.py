"""Count what a planned failover gives out twice.

A master with a replica and three Sentinels on loopback. In each run three processes insert the same lines: one with one
caller, one with eight threads, one with four tasks of asyncio, each caller in an order of its own. When a quarter of
the lines has been told "new", ``SENTINEL FAILOVER`` lets the replica take over. The table has how many lines were told
"new" more than once and never, and the seconds until all processes were through. In the end a new client asks for all
lines once more: what was answered by the old master alone is new to it.

It needs the checkout, and redis-server on the PATH.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support import crawler
from support.sentinels import Watched
from support.servers import wait_until

from bench.runner import Row
from urifilter_redis import Timeouts, UriFilter

LINES = 20_000

#: The callers of each process, as the last arguments of ``support.crawler``.
PROCESSES = [("1", []), ("8", []), ("4", ["tasks"])]


def run(watched: Watched, wait_replicas: int, batch: int) -> tuple[int, int, float]:
    """Return how many lines were told "new" twice or more, and never, and the seconds until the processes ended."""
    url = watched.url_of(wait_replicas=wait_replicas) if wait_replicas else watched.url
    UriFilter.create("news", redis=url, capacity=100_000, error_rate=1e-8, shards=3).close()
    with tempfile.TemporaryDirectory() as folder:
        out, begin = Path(folder, "new"), time.monotonic()
        command = [sys.executable, crawler.__file__, url, "news", str(LINES)]
        running = [
            subprocess.Popen([*command, str(seed), str(batch), "1", callers, str(out), *kind])
            for seed, (callers, kind) in enumerate(PROCESSES)
        ]
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") > LINES // 4, "they do not begin", 300)
        watched.failover()
        failed = [each.wait() for each in running]
        took = time.monotonic() - begin
        if any(failed):
            raise RuntimeError(f"processes ended with {failed}")
        told = Counter(out.read_text().split())
    never = LINES - len(told)
    with UriFilter.open("news", redis=url, timeouts=Timeouts(total=60)) as news:
        told.update(news.unique(f"https://example.com/{number}" for number in range(LINES)))
    return sum(count > 1 for count in told.values()), never, took


def main(runs: int = 5, wait_replicas: int = 0, batch: int = 4) -> Iterator[Row]:
    """Yield a row a run; fail if a line was lost, or told twice although a replica had each answer.

    Options:
        batch: lines a call
    """
    wrong = 0
    for number in range(runs):
        with Watched() as watched:
            twice, never, took = run(watched, wait_replicas, batch)
        wrong += never + (twice if wait_replicas else 0)
        yield {"run": number, "twice": twice, "never": never, "seconds": took}
    sys.exit(wrong > 0)
