"""A link in large filters, in one shard of many bitmaps and in as many shards, beside a small filter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product

from bench import servers
from bench.machine import versions
from bench.measuring import ask, contestant, cut, raced
from bench.peers.ours import Ours
from bench.sections import Found, Row, Say, Settings
from bench.streams import Uris, tries
from bench.tables import cells_tables
from bench.usage import ServerCounters
from urifilter_redis.bloom.retention import Shape, size_first

TITLE = "Shards and segments"
ABOUT = (
    "One client, lists of 20, 100, 500 and 5,000 items, on nearly empty filters for 5.5 million, 100 million and a"
    " billion. One shard has all bitmaps, as `create` makes it; once each has a shard of its own. The ratio is of items"
    " a second, to the small filter."
)
QUOTED = ("new, 100 a call", "seen, 100 a call")

CAPACITY, QUICK_CAPACITY = 100_000_000, 12_000_000
LARGEST = 1_000_000_000
SMALL = 5_500_000
FILLED = 50_000
BATCHES = {20: 2000, 100: 5000, 500: 10_000, 5000: 20_000}
QUICK_BATCHES = {100: 1000}
MIXES = ("new", "seen")


class Sized(Ours):
    """A filter of some capacity, in so many shards; None: by default."""

    compared_as = "this library, layout blocked"

    def __init__(self, name: str, capacity: int, shards: int | None) -> None:
        super().__init__()
        self.name, self.capacity, self.settings = name, capacity, {"shards": shards}


def measure(settings: Settings, say: Say) -> Found:
    """Measure the filters; the largest takes 3.2 GB, and is left out in a quick run."""
    large = QUICK_CAPACITY if settings.quick else CAPACITY
    parted = size_first(Shape(capacity=large, error_rate=settings.error_rate)).segments
    with ExitStack() as stack:
        client = stack.enter_context(servers.server(settings.server))
        made = [
            Sized("small", SMALL, None),
            Sized("large", large, None),
            Sized(f"large, {parted} shards", large, parted),
        ]
        made += [] if settings.quick else [Sized("largest", LARGEST, None)]
        filters = {each.name: each for each in made}
        for each in made:
            stack.callback(each.close)
            each.open(each.capacity, settings.error_rate, servers.address(client))
            ask(each.insert, cut(Uris(range(FILLED)), each.fill))
        counters = stack.enter_context(ServerCounters(client))
        cells: list[Row] = []
        batches = QUICK_BATCHES if settings.quick else BATCHES
        for place, (batch, mix) in enumerate(product(batches, MIXES)):
            given = (mix, batches[batch], place, settings.seed, FILLED)
            racing = {name: contestant(each, tries(*given), batch, counters) for name, each in filters.items()}
            dice = random.Random(settings.seed)
            cells += [cell.to_json() for cell in raced(racing, (mix, batch), settings.rule, dice, "server")]
            say(f"{mix}, {batch:,} a call")
        rows = [{"peer": each.name, "segments": each.news.config.segments} for each in made]
        asked = {"capacity": large, "small": SMALL, "largest": LARGEST, "filled": FILLED, "rule": asdict(settings.rule)}
        return Found(asked, versions(client, filters), cells, rows)


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each mix and number of items a call."""
    yield from cells_tables(found["cells"])
