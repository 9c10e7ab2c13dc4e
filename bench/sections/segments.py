"""A link in large filters, in one shard of many bitmaps and in as many shards, beside a small filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product

from bench.measuring import ask, attempt, cut
from bench.peers import Peer
from bench.peers.ours import Ours
from bench.peers.redisbloom import BfMadd
from bench.sections import MIXES, Row, Say, Settings
from bench.stand import stand
from bench.streams import Uris
from bench.tables import cells_tables as tables  # noqa: F401 - those of this section
from urifilter_redis.bloom.retention import Shape, size_first

TITLE = "Shards and segments"
ABOUT = (
    "One client, lists of 1 to 5,000 items, on nearly empty filters for 5.5 million, 100 million and a billion. One"
    " shard has all bitmaps, as `create` makes it; once each has a shard of its own. The ratio is of items a second, to"
    " the small filter. Items are inserted, and others claimed, which stay in flight, or looked up. With `--server"
    " bloom` there are layout redisbloom, and BF.MADD on a filter for 5.5 and one for 100 million."
)
QUOTED = tuple(f"{mix}, 100 a call" for mix in ("new", "seen", "claim, new", "claim, seen", "contains, seen"))

CAPACITY, QUICK_CAPACITY = 100_000_000, 12_000_000
LARGEST = 1_000_000_000
SMALL = 5_500_000
FILLED = 50_000
BATCHES = {1: 1000, 20: 2000, 100: 5000, 500: 10_000, 5000: 20_000}
QUICK_BATCHES = {100: 1000}

#: The links of a page: a call of those that are claimed or looked up.
PAGE = 100

#: Returns how many items of a batch are new.
News = Callable[[Sequence[str]], int]


class SmallMadd(BfMadd):
    """BF.MADD on a small filter: what a larger one costs there."""

    name = "small, BF.MADD"
    keys = "bench-bf-madd-small"

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - it has one of its own
        """Make the filter, empty."""
        super().open(SMALL, error_rate, server)


class Sized(Ours):
    """A filter of some capacity, with so many shards; None: by default."""

    compared_as = "this library"

    def __init__(self, name: str, capacity: int, shards: int | None = None, layout: str = "blocked") -> None:
        super().__init__()
        self.name, self.capacity, self.settings, self.layout = name, capacity, {"shards": shards}, layout
        self.needs_module = layout == "redisbloom"

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - it has one of its own
        """Make the filter, empty."""
        super().open(self.capacity, error_rate, server)


def claiming(peer: Sized) -> News:
    """Claim items, which stay in flight."""
    mine = peer.news.claims(lease=3600, beats=False)
    return lambda batch: sum(mine.claim_many(batch))


def looking(peer: Peer) -> News:
    """Look items up."""
    return lambda batch: len(batch) - peer.seen(batch)


def begin(peer: Peer) -> None:
    """Put some items in."""
    ask(peer.insert, cut(Uris(range(FILLED)), peer.fill))


def measure(settings: Settings, say: Say) -> Row:
    """Measure the filters; the largest takes 3.2 GB, and is left out in a quick run."""
    large = QUICK_CAPACITY if settings.quick else CAPACITY
    parted = size_first(Shape(capacity=large, error_rate=settings.error_rate)).segments
    made = [Sized("small", SMALL), Sized("large", large), Sized(f"large, {parted} shards", large, parted)]
    made += [] if settings.quick else [Sized("largest", LARGEST)]
    sizes = {"small": SMALL, "large": large}
    made += [Sized(f"{name}, redisbloom", items, layout="redisbloom") for name, items in sizes.items()]
    with stand(settings.server, [*made, SmallMadd(), BfMadd()], large, settings.error_rate, begin) as here:
        batches, how = QUICK_BATCHES if settings.quick else BATCHES, {"known": FILLED, "figure": "server"}
        kinds = [(mix, *batch) for batch, mix in product(batches.items(), MIXES)]
        cells = here.race(kinds, settings, say, **how)
        opened = {name: peer for name, peer in here.peers.items() if isinstance(peer, Sized)}
        ways: dict[str, dict[str, News]] = {
            "claim": {name: claiming(peer) for name, peer in opened.items()},
            "contains": {name: looking(peer) for name, peer in here.peers.items()},
        }
        for place, (way, asked_by) in enumerate(ways.items(), 1):
            attempts = {
                name: partial(attempt, here.peers[name], here.counters, news=news) for name, news in asked_by.items()
            }
            pages = [(mix, PAGE, batches[PAGE]) for mix in MIXES]
            raced = here.race(pages, settings, say, attempts, first=place * len(kinds), **how)
            cells += [{**cell, "mix": f"{way}, {cell['mix']}"} for cell in raced]
        rows: list[Row] = [{"peer": name, "segments": peer.news.config.segments} for name, peer in opened.items()]
        asked = {"capacity": large, "small": SMALL, "largest": LARGEST, "filled": FILLED, "rule": asdict(settings.rule)}
        return here.found(asked, cells, rows)
