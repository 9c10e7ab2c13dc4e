"""The URIs of the tries: all peers get the same ones in the same order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.urls import url

#: So many URIs are put into each filter before it is measured; ``seen`` draws its URIs of them.
WARM = 10_000

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


def warm() -> list[str]:
    """Return the URIs that are inserted before."""
    return [uri(number) for number in range(WARM)]


def new(size: int, start: int, _: random.Random) -> Iterator[Try]:
    """Yield tries of URIs that are all new."""
    for begin in itertools.count(start, size):
        yield Try(tuple(map(uri, range(begin, begin + size))), size)


def seen(size: int, _: int, dice: random.Random) -> Iterator[Try]:
    """Yield tries of URIs that were all seen, no two alike."""
    while True:
        yield Try(tuple(map(uri, dice.sample(range(WARM), size))), 0)


def links(size: int, start: int, dice: random.Random) -> Iterator[Try]:
    """Yield tries of links as a crawl finds them: each try is a crawl of its own, about a third of its links are new.

    A crawl has as many links as pages, and the n-th page has a share of 1/n of the links (Zipf's law). All crawls have
    the same links, to other pages each, so that every try is the same work.
    """
    pages = [int(size ** dice.random()) for _ in range(size)]
    for begin in itertools.count(start, size + 1):
        yield Try(tuple(uri(begin + page) for page in pages), len({*pages}))


#: A mix yields tries: (URIs a try, first number, dice).
Mix = Callable[[int, int, random.Random], Iterator[Try]]

MIXES: dict[str, Mix] = {"new": new, "seen": seen, "links": links}


def tries(mix: str, size: int, place: int, seed: int) -> Iterator[Try]:
    """Yield the tries of a mix without end.

    Args:
        mix: a name of ``MIXES``.
        size: the URIs of a try, at most ``WARM``.
        place: another one for each stream that goes into the same filters.
        seed: what is drawn.
    """
    return MIXES[mix](size, (place + 1) * ROOM, random.Random(f"{mix} {place} {seed}"))
