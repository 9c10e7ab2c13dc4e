"""Measure an import beside ``urifilter add``, in one run: ``python bench/importing.py [--items N] [--rounds N]``.

Each round inserts the same fingerprints (40 hex digits) into an empty filter in each way, in turn: lines of a file as
``add`` does, the file by ``urifilter import``, a set on the filter's server, and a set on another server. The table has
the median of the rounds: items a second, wall time, and the median of each round's ratio to ``add``. Machines are
noisy: read ratios. The last lines have the bytes of MEMORY USAGE of the set and of all keys of the filter.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from servers import server
from urifilter_redis.cli.importing import FileSource
from urifilter_redis.cli.lines import windows_of

from urifilter_redis.importing.importer import Import, Receiver
from urifilter_redis.importing.sources import SetSource, Source

if TYPE_CHECKING:
    import redis

KEY, STEP = b"spider:dupefilter", 10_000


def fingerprints(count: int) -> Iterator[list[str]]:
    """Yield the fingerprints of so many URLs in lists."""
    for start in range(0, count, STEP):
        numbers = range(start, min(start + STEP, count))
        yield [hashlib.sha1(b"https://example.com/%d" % number).hexdigest() for number in numbers]


def address(client: redis.Redis) -> str:
    """Return the URL of a server's unix socket."""
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


def add(news: Receiver, file: Path) -> None:
    """Insert lines as ``urifilter add`` does."""
    for window in windows_of([str(file)], print):
        news.insert_many(window.items)


def moved(news: Receiver, source: Source) -> None:
    """Insert a source as ``urifilter import`` does."""
    moving = Import(news, source, print, restart=True)
    for window in moving.windows():
        moving.insert(window)
    moving.finish()


def moved_set(news: Receiver, url: str) -> None:
    """Insert the set of a server."""
    with SetSource(KEY, redis=url) as members:
        moved(news, members)


def measured(client: redis.Redis, count: int, rounds: int, ways: dict[str, Callable[[Receiver], None]]) -> None:
    """Print the rows, and the memory of the filter."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, insert in ways.items():
            with Receiver.create(f"n{number}", capacity=2 * count, redis=address(client)) as news:
                start = time.perf_counter()
                insert(news)
                found[way].append(time.perf_counter() - start)
                memory = news.info().memory
                news.drop()
    for way, times in found.items():
        ratio = statistics.median(map(lambda a, b: b / a, times, found["add, file"]))
        print(f"{way:28} {count / statistics.median(times):9,.0f} items/s {ratio:6.2f}")
    print(f"filter for {2 * count:,} items: {memory:,} bytes")


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with server("redis") as client, server("redis") as other, tempfile.TemporaryDirectory(prefix="uf-") as folder:
        file = Path(folder) / "fingerprints"
        with file.open("w") as lines:
            for some in fingerprints(options.items):
                lines.writelines(f"{each}\n" for each in some)
                for each in (client, other):
                    each.sadd(KEY, *some)
        ways: dict[str, Callable[[Receiver], None]] = {
            "add, file": lambda news: add(news, file),
            "import, file": lambda news: moved(news, FileSource([str(file)], lambda _: None)),
            "import, set": lambda news: moved_set(news, address(client)),
            "import, set elsewhere": lambda news: moved_set(news, address(other)),
        }
        measured(client, options.items, options.rounds, ways)
        print(f"set of {options.items:,} fingerprints: {client.memory_usage(KEY, samples=0):,} bytes")


if __name__ == "__main__":
    main()
