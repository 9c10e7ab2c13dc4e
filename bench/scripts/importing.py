"""Measure an import beside ``urifilter add``, in one run.

Each round inserts the same fingerprints (40 hex digits) into an empty filter in each way, in turn: lines of a file as
``add`` does, the file by ``urifilter import``, a set on the filter's server, and a set on another server. The table has
the median of the rounds: items a second, wall time, and the median of each round's ratio to ``add``. Machines are
noisy: read ratios. The last lines have the bytes of MEMORY USAGE of the set and of all keys of the filter.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from urifilter_redis.cli.importing import FileSource
from urifilter_redis.cli.lines import windows_of

from bench import servers
from bench.runner import Row, medians, timed, turns
from urifilter_redis.importing.importer import Import, Receiver
from urifilter_redis.importing.sources import SetSource, Source

KEY, STEP = b"spider:dupefilter", 10_000


def fingerprints(count: int) -> Iterator[list[str]]:
    """Yield the fingerprints of so many URLs in lists."""
    for start in range(0, count, STEP):
        numbers = range(start, min(start + STEP, count))
        yield [hashlib.sha1(b"https://example.com/%d" % number).hexdigest() for number in numbers]


def add(file: Path, news: Receiver) -> None:
    """Insert lines as ``urifilter add`` does."""
    for window in windows_of([str(file)], print):
        news.insert_many(window.items)


def moved(source: Source, news: Receiver) -> None:
    """Insert a source as ``urifilter import`` does."""
    moving = Import(news, source, print, restart=True)
    for window in moving.windows():
        moving.insert(window)
    moving.finish()


def moved_set(url: str, news: Receiver) -> None:
    """Insert the set of a server."""
    with SetSource(KEY, redis=url) as members:
        moved(members, news)


def measure(url: str, count: int, memory: list[int], insert: Callable[[Receiver], None]) -> float:
    """Insert into an empty filter, and keep its memory; return items a second."""
    with Receiver.create("news", capacity=2 * count, redis=url) as news:
        taken, _ = timed(partial(insert, news))
        memory.append(news.info().memory)
        news.drop()
    return count / taken


def main(items: int = 1_000_000, rounds: int = 5) -> Iterator[str | Row]:
    """Yield all rows."""
    with servers.server("redis") as client, servers.server("redis") as other, tempfile.NamedTemporaryFile("w") as file:
        for some in fingerprints(items):
            file.writelines(f"{each}\n" for each in some)
            for each in (client, other):
                each.sadd(KEY, *some)
        file.flush()
        ways: dict[str, Callable[[Receiver], None]] = {
            "add, file": partial(add, Path(file.name)),
            "import, file": lambda news: moved(FileSource([file.name], lambda _: None), news),
            "import, set": partial(moved_set, servers.address(client)),
            "import, set elsewhere": partial(moved_set, servers.address(other)),
        }
        memory: list[int] = []
        url = servers.address(client)
        found = turns({way: partial(measure, url, items, memory, insert) for way, insert in ways.items()}, rounds)
        yield from medians(found, "items/s", "add, file")
        yield f"filter for {2 * items:,} items: {memory[-1]:,} bytes"
        yield f"set of {items:,} fingerprints: {client.memory_usage(KEY, samples=0):,} bytes"
