"""A crawler process for a cluster that fails over: inserts numbered URIs until it is told to stop, and logs them.

``python cluster_crawler.py URL FILTER SEED TOGETHER FOLDER``: asks about 200 new numbers at a time, as all crawlers do
at about the same time, and about some that were asked before. Its log is ``FOLDER/SEED``: before each call a line of
the numbers that it asks about, ``?`` in front; after it a line of those that are new, ``!`` in front. It ends when
there is ``FOLDER/stop``. TOGETHER 0: a call is about numbers of one shard, so that its answers come from one master.
Crawlers with an odd SEED have the client of asyncio.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.blocked import Clients
from urifilter_redis import ServerUnavailable, Timeouts
from urifilter_redis.bloom.digest import hasher, shard_of

#: Numbers that are new at a time, and those of a call; seconds between two times, so that the logs stay short.
BLOCK, BATCH, PAUSE = 200, 50, 0.2

#: Seconds after which a call that gets no answer fails the run.
PATIENCE = 120


def uri_of(number: int) -> str:
    return f"https://example.com/{number}"


def shards_of(config, numbers) -> dict[int, list[int]]:
    """Return the numbers of each shard."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    numbers = list(numbers)
    digests = hasher(config.hash, config.seed)([uri_of(each).encode() for each in numbers])
    for number, digest in zip(numbers, digests, strict=True):
        found[shard_of(digest, config.shards)].append(number)
    return found


def ask(news, numbers: list[int]) -> list[int]:
    """Return the numbers that are new; ask as often as it takes."""
    error, end = None, time.monotonic() + PATIENCE
    while True:
        try:
            return news.unique(numbers, key=uri_of, retry=error)
        except ServerUnavailable as failed:
            if time.monotonic() > end:
                raise
            error = failed


def main() -> None:
    url, name, seed, together, folder = sys.argv[1:]
    draw, stop = random.Random(int(seed)), Path(folder) / "stop"
    with Clients("asyncio" if int(seed) % 2 else "blocking") as clients, (Path(folder) / seed).open("w", 1) as log:
        news, end = clients.open(name, redis=url, timeouts=Timeouts(total=1)), 0
        while not stop.exists():
            numbers = [*range(end, end + BLOCK), *(draw.randrange(end + BLOCK) for _ in range(BLOCK // 2))]
            end += BLOCK
            draw.shuffle(numbers)
            time.sleep(PAUSE)
            for some in shards_of(news.config, numbers).values() if together == "0" else [numbers]:
                for start in range(0, len(some), BATCH):
                    batch = some[start : start + BATCH]
                    log.write(f"? {' '.join(map(str, batch))}\n")
                    log.write(f"! {' '.join(map(str, ask(news, batch)))}\n")


if __name__ == "__main__":
    main()
