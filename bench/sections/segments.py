"""A link in large filters, in one shard of many bitmaps and in as many shards, beside a small filter."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product

from bench.measuring import ask, cut
from bench.peers.ours import Ours
from bench.sections import Found, Say, Settings
from bench.stand import stand
from bench.streams import Uris
from bench.tables import cells_tables as tables  # noqa: F401 - those of this section
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

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - it has one of its own
        """Make the filter, empty."""
        super().open(self.capacity, error_rate, server)

    def begin(self) -> None:
        """Put some items in."""
        ask(self.insert, cut(Uris(range(FILLED)), self.fill))


def measure(settings: Settings, say: Say) -> Found:
    """Measure the filters; the largest takes 3.2 GB, and is left out in a quick run."""
    large = QUICK_CAPACITY if settings.quick else CAPACITY
    parted = size_first(Shape(capacity=large, error_rate=settings.error_rate)).segments
    made = [Sized("small", SMALL, None), Sized("large", large, None), Sized(f"large, {parted} shards", large, parted)]
    made += [] if settings.quick else [Sized("largest", LARGEST, None)]
    with stand(settings.server, made, large, settings.error_rate, Sized.begin) as here:
        batches = QUICK_BATCHES if settings.quick else BATCHES
        kinds = [(mix, *batch) for batch, mix in product(batches.items(), MIXES)]
        cells = here.race(kinds, settings, say, known=FILLED, figure="server")
        rows = [{"peer": each.name, "segments": each.news.config.segments} for each in made]
        asked = {"capacity": large, "small": SMALL, "largest": LARGEST, "filled": FILLED, "rule": asdict(settings.rule)}
        return here.found(asked, cells, rows)
