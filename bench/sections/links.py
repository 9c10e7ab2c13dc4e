"""Streams of links, as crawls find them, with a near cache and without."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from bench.measuring import cut
from bench.peers.ours import Blocked, NearCache
from bench.peers.redisbloom import BfMadd
from bench.sections import Row, Say, Settings
from bench.stand import stand
from bench.streams import Uris
from bench.tables import cells_tables
from urifilter_redis.bloom.digest import make_digester
from urifilter_redis.engine.near_cache import SECONDS
from urifilter_redis.engine.near_cache import NearCache as Cache

TITLE = "Streams of links, with a near cache"
ABOUT = (
    "One client. Each try is a crawl of its own. crawl: a page of links a call, to one page for each 100 links."
    " skewed: links to ten million pages, the n-th of which has a share of 1/n. far: each link comes a second time when"
    " the cache, of 100,000 entries, has forgotten it. BF.MADD, near cache: this library's near cache before BF.MADD."
)

#: The items of one call, with those of one try, for each stream.
LISTS = (100, 500, 4000)
STREAMS = {"crawl": {100: 60_000}, "skewed": dict.fromkeys(LISTS, 200_000), "far": dict.fromkeys(LISTS, 300_000)}
QUOTED = tuple(f"{stream}, {size:,} a call" for stream, batches in STREAMS.items() for size in batches)
QUICK_STREAMS = {"crawl": {100: 10_000}, "skewed": {500: 20_000}}
CAPACITY, QUICK_CAPACITY = 100_000_000, 1_000_000

#: The most tries of a race.
MOST = 8


class Behind(BfMadd):
    """BF.MADD of those links that this library's near cache does not know."""

    name = "BF.MADD, near cache"
    keys = "bench-bf-madd-near-cache"

    def make(self, capacity: int, error_rate: float) -> None:
        """Reserve the filter, and make an empty cache."""
        super().make(capacity, error_rate)
        self._near, self._digests = Cache(NearCache.near_cache, SECONDS), make_digester("none", "mmh3", "1")

    def insert(self, batch: Sequence[str]) -> int:
        """Insert by BF.MADD what the cache does not know."""
        digests = self._digests(batch)
        missed = [place for place, known in enumerate(self._near.find(digests)) if not known]
        if not missed:
            return 0
        question = self._near.begin([digests[place] for place in missed])
        new = super().insert([batch[place] for place in missed])
        self._near.end(question, [1] * len(missed), 0)
        return new


def measure(settings: Settings, say: Say) -> Row:
    """Measure this library and BF.MADD; all filters are empty."""
    streams, capacity = (QUICK_STREAMS, QUICK_CAPACITY) if settings.quick else (STREAMS, CAPACITY)
    rule = replace(settings.rule, tries=min(settings.rule.tries, MOST))
    peers = (BfMadd(), Behind(), Blocked(), NearCache())
    with stand(settings.server, peers, capacity, settings.error_rate, lambda _: None) as here:
        kinds = [(stream, *each) for stream, batches in streams.items() for each in batches.items()]
        cells = here.race(kinds, replace(settings, rule=rule), say)
        made = {"capacity": capacity, "rule": asdict(rule), "streams": streams}
        return here.found(made, cells, [{"peer": NearCache.name, "memory": memory_of()}])


def memory_of() -> float:
    """Return the bytes that a full cache takes for each of its entries."""
    digests, uris = make_digester("none", "mmh3", "1"), Uris(range(2 * NearCache.near_cache))
    tracemalloc.start()
    try:
        cache = Cache(NearCache.near_cache, SECONDS)
        for batch in cut(uris, 500):
            hashed = digests(batch)
            cache.end(cache.begin(hashed), [1] * len(hashed), 0)
        return tracemalloc.get_traced_memory()[0] / cache.info.entries
    finally:
        tracemalloc.stop()


def tables(found: Row) -> Iterator[str]:
    """Yield a table for each stream and batch."""
    yield from cells_tables(found)
    for row in found["filters"]:
        yield f"\nAn entry of a full cache takes {row['memory']:.0f} bytes of its process."
