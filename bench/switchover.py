"""Count what a planned failover gives out twice: ``python bench/switchover.py [--runs N] [--wait-replicas N]``.

A master with a replica and three Sentinels on loopback. In each run three processes insert the same lines: one with one
caller, one with eight threads, one with four tasks of asyncio, each caller in an order of its own. When a quarter of
the lines has been told "new", ``SENTINEL FAILOVER`` lets the replica take over. The table has how many lines were told
"new" more than once and never, and the seconds until all processes were through. In the end a new client asks for all
lines once more: what was answered by the old master alone is new to it.

It needs the checkout, and redis-server on the PATH.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import crawler
from support.sentinels import Watched
from support.servers import wait_until

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


def main() -> None:
    """Print a row a run; fail if a line was lost, or told twice although a replica had each answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--wait-replicas", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4, help="lines a call")
    options = parser.parse_args()
    wrong = 0
    print(f"{'run':>3} {'twice':>7} {'never':>7} {'seconds':>8}")
    for number in range(options.runs):
        with Watched() as watched:
            twice, never, took = run(watched, options.wait_replicas, options.batch)
        wrong += never + (twice if options.wait_replicas else 0)
        print(f"{number:3} {twice:7,} {never:7,} {took:8.1f}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
