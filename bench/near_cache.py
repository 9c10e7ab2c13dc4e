"""Measure streams of links with a near cache beside RedisBloom's BF.MADD: ``python bench/near_cache.py [--links N]``.

All filters are for 100 million items at 1e-4, in one Redis with RedisBloom (extra ``bench``). Each way gets the same
links as text, in the same lists. The ways take turns, so that a noisy machine treats them alike. The table has the
median of the turns' links a second, and the median of each turn's ratio to bare BF.MADD.

The streams: "crawl" is 600 pages of 100 links to one another, a page a call (99 % repeats), and each turn is one more
crawl with new caches. "skewed" is ``--links`` links to ten million pages, the n-th of which has a share of 1/n (Zipf's
law): many times more pages than the cache holds. "far" has each link a second time half of the stream later, which is
far more than the cache holds, so that the cache is asked in vain.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from servers import server

from bench import CAPACITY, ERROR_RATE
from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import hasher
from urifilter_redis.engine.batch import Digester
from urifilter_redis.engine.near_cache import SECONDS, NearCache

if TYPE_CHECKING:
    import redis

ENTRIES, PAGES, LINKS_A_PAGE = 100_000, 600, 100
LISTS, TURNS, WEB = (100, 500, 4000), 10, 10_000_000

#: A function that answers whether each of some links is new.
Way = Callable[[list[str]], list[bool]]


def bare(client: redis.Redis, key: str = "bare") -> Way:
    """Insert with BF.MADD."""

    def insert(links: list[str]) -> list[bool]:
        return list(map(bool, client.execute_command("BF.MADD", key, *links)))

    return insert


def behind_a_cache(client: redis.Redis) -> Way:
    """Insert with BF.MADD those links that this library's near cache does not know."""
    near, digester, ask = NearCache(ENTRIES, SECONDS), Digester("none", hasher("mmh3", "1")), bare(client, "behind")

    def insert(links: list[str]) -> list[bool]:
        digests = digester(links)
        found = near.find(digests)
        answers = [False] * len(links)
        missed = [position for position, known in enumerate(found) if not known]
        if missed:
            question = near.begin([digests[position] for position in missed])
            new = ask([links[position] for position in missed])
            near.end(question, [1] * len(missed), 0)
            for position, answer in zip(missed, new, strict=True):
                answers[position] = answer
        return answers

    return insert


def made(client: redis.Redis) -> dict[str, Way]:
    """Return every way of inserting, each with a new cache."""
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    cached = UriFilter.open("cached", redis=url, near_cache=ENTRIES)
    plain = UriFilter.open("plain", redis=url)
    return {
        "BF.MADD": bare(client),
        "BF.MADD, near cache": behind_a_cache(client),
        "insert_many": plain.insert_many,
        "insert_many, near cache": cached.insert_many,
    }


def make_filters(client: redis.Redis) -> None:
    """Make the filters of all ways, empty."""
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    client.flushall()
    for key in ("bare", "behind"):
        client.execute_command("BF.RESERVE", key, ERROR_RATE, CAPACITY)
    for name in ("cached", "plain"):
        UriFilter.create(name, capacity=CAPACITY, error_rate=ERROR_RATE, redis=url, large=True).close()


def turn(way: Way, lists: list[list[str]]) -> tuple[float, int]:
    """Insert lists of links; return links a second, and the number of new links."""
    new, start = 0, time.perf_counter()
    for links in lists:
        new += way(links).count(True)
    return sum(map(len, lists)) / (time.perf_counter() - start), new


def measure(ways: dict[str, Way], lists: list[list[str]], rates: dict[str, list[float]]) -> None:
    """Add the rate of each way for the same lists; check that all find as many new links, but for false positives."""
    order = list(ways)
    random.shuffle(order)
    counts = {}
    for way in order:
        rate, counts[way] = turn(ways[way], lists)
        rates.setdefault(way, []).append(rate)
    assert max(counts.values()) - min(counts.values()) <= 10 + max(counts.values()) // 1000, counts


def show(label: str, rates: dict[str, list[float]]) -> None:
    """Print the rows of a stream."""
    for way, each in rates.items():
        ratio = statistics.median(map(lambda a, b: a / b, each, rates["BF.MADD"]))
        print(f"{label:14} {way:24} {statistics.median(each):12,.0f} {ratio:7.2f}")


def crawls(client: redis.Redis) -> None:
    """Print the rows of the crawl."""
    make_filters(client)
    rates: dict[str, list[float]] = {}
    for number in range(2 * TURNS):
        pages = [f"https://example.com/crawl-{number}/page/{page}.html" for page in range(PAGES)]
        lists = [[random.choice(pages) for _ in range(LINKS_A_PAGE)] for _ in pages]
        measure(made(client), lists, rates)
    show("crawl, 100", {way: rates[way] for way in made(client)})


def skewed(links: int, _: int) -> list[int]:
    """Return the pages of one turn; their number in the web is also their rank."""
    return [int(WEB ** random.random()) for _ in range(links // TURNS)]


def far(links: int, number: int) -> range:
    """Return the pages of one turn; the second half of the turns has those of the first."""
    start = number * (links // TURNS) % (links // 2)
    return range(start, start + links // TURNS)


def stream(client: redis.Redis, pages: Callable[[int, int], Sequence[int]], links: int, size: int) -> None:
    """Print the rows of a stream, in lists of ``size``."""
    make_filters(client)
    rates: dict[str, list[float]] = {}
    ways = made(client)
    for number in range(TURNS):
        uris = [f"https://example.com/pages/{page}.html" for page in pages(links, number)]
        measure(ways, [uris[at : at + size] for at in range(0, len(uris), size)], rates)
    show(f"{pages.__name__}, {size}", {way: rates[way] for way in ways})


def memory() -> None:
    """Print the bytes that a full cache takes for each of its entries."""
    digester = Digester("none", hasher("mmh3", "1"))
    tracemalloc.start()
    near = NearCache(ENTRIES, SECONDS)
    for start in range(0, 2 * ENTRIES, 500):
        digests = digester([f"https://example.com/{number}" for number in range(start, start + 500)])
        near.end(near.begin(digests), [1] * 500, 0)
    used, entries = tracemalloc.get_traced_memory()[0], near.info.entries
    tracemalloc.stop()
    print(f"\nMemory: {entries:,} entries take {used / 1e6:.1f} MB, {used / entries:.0f} bytes each")


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"Near cache of {ENTRIES:,} entries, filters for {CAPACITY:,} at {ERROR_RATE:g}")
    print(f"{'stream, list':14} {'way':24} {'links/s':>12} {'ratio':>7}")
    with server("bloom") as client:
        crawls(client)
        for pages in (skewed, far):
            for size in LISTS:
                stream(client, pages, options.links, size)
    memory()


if __name__ == "__main__":
    main()
