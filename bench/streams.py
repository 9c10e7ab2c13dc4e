"""The URIs of the tries: all peers get the same ones in the same order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.urls import url

#: So many URIs are put into each filter before it is measured; ``seen`` draws its URIs of them.
WARM = 10_000

#: The pages of the web that ``skewed`` links to.
WEB = 10_000_000

#: The URIs of each stream have numbers of their own: so many of them.
ROOM = 10**9


@dataclass(frozen=True, slots=True)
class Try:
    """The URIs of one try.

    Attributes:
        uris: the URIs, in their order.
        new: how many of them are new, of equal ones the first.
    """

    uris: tuple[str, ...]
    new: int


def uri(number: int) -> str:
    """Return a URI of 66 bytes."""
    return url(number).decode()


class Uris(Sequence[str]):
    """The URIs of a range of numbers, each made when it is asked for."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        """Return a URI, or a list of them."""
        if isinstance(place, slice):
            return [uri(number) for number in self._numbers[place]]
        return uri(self._numbers[place])


def new(size: int, start: int, _: random.Random, __: int) -> Iterator[Try]:
    """Yield tries of URIs that are all new."""
    for begin in itertools.count(start, size):
        yield Try(tuple(map(uri, range(begin, begin + size))), size)


def seen(size: int, _: int, dice: random.Random, known: int) -> Iterator[Try]:
    """Yield tries of URIs that were all seen, no two alike."""
    while True:
        yield Try(tuple(map(uri, dice.sample(range(known), size))), 0)


def links(size: int, start: int, dice: random.Random, _: int) -> Iterator[Try]:
    """Yield tries of links as a crawl finds them: each try is a crawl of its own, about a third of its links are new.

    A crawl has as many links as pages, and the n-th page has a share of 1/n of the links (Zipf's law). All crawls have
    the same links, to other pages each, so that every try is the same work.
    """
    return webs([int(size ** dice.random()) for _ in range(size)], size + 1, start)


def webs(pages: Sequence[int], room: int, start: int) -> Iterator[Try]:
    """Yield tries with the same links, to other pages each: their numbers are below ``room``."""
    different = len({*pages})
    for begin in itertools.count(start, room):
        yield Try(tuple(uri(begin + page) for page in pages), different)


def crawl(size: int, start: int, dice: random.Random, _: int) -> Iterator[Try]:
    """Yield tries of links as a crawl of a small site finds them: one page for each 100 links."""
    pages = max(1, size // 100)
    return webs([dice.randrange(pages) for _ in range(size)], pages, start)


def skewed(size: int, start: int, dice: random.Random, _: int) -> Iterator[Try]:
    """Yield tries of links to ten million pages, the n-th of which has a share of 1/n of the links (Zipf's law)."""
    return webs([int(WEB ** dice.random()) for _ in range(size)], WEB + 1, start)


def far(size: int, start: int, _: random.Random, __: int) -> Iterator[Try]:
    """Yield tries in which each link comes a second time half a try later."""
    return webs([*range(size // 2)] * 2, size // 2, start)


#: A mix yields tries: (URIs a try, first number, dice, how many of the first URIs were inserted before).
Mix = Callable[[int, int, random.Random, int], Iterator[Try]]

MIXES: dict[str, Mix] = {"new": new, "seen": seen, "links": links}

#: Streams of links in which a cache of the process can find more or less.
STREAMS: dict[str, Mix] = {"crawl": crawl, "skewed": skewed, "far": far}


def tries(mix: str, size: int, place: int, seed: int, known: int = WARM) -> Iterator[Try]:
    """Yield the tries of a mix without end.

    Args:
        mix: a name of ``MIXES`` or ``STREAMS``.
        size: the URIs of a try; of ``seen`` at most ``known``.
        place: another one for each stream that goes into the same filters.
        seed: what is drawn.
        known: so many of the first URIs were inserted before.
    """
    made = (MIXES | STREAMS)[mix]
    return made(size, (place + 1) * ROOM, random.Random(f"{mix} {place} {seed}"), known)
