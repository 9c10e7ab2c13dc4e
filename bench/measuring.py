"""Measures peers: each mix and batch is a race of all peers that take such batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from bench.kbest import Best, Rule, best_of, race
from bench.peers import ALL, Peer
from bench.servers import Missing
from bench.streams import WARM, Try, tries, warm
from bench.usage import ServerCounters, Used, Watch

#: A function that makes one try of one peer.
Runner = Callable[[], "Attempt"]

#: Items that one call of the warming has.
WARM_BATCH = 5000


class WrongAnswer(Exception):
    """A peer did not answer as it must: its figures would be of other work."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        mixes: names of ``bench.streams.MIXES``.
        batches: the items of one call, with the items of one try.
        rule: when tries agree.
        capacity: items that each filter is made for.
        error_rate: of each filter.
        seed: draws the orders and the URIs.

    Raises:
        ValueError: the filters cannot hold all items.
    """

    mixes: tuple[str, ...]
    batches: Mapping[int, int]
    rule: Rule
    capacity: int
    error_rate: float
    seed: int

    def __post_init__(self) -> None:
        most = WARM + len(self.mixes) * self.rule.tries * sum(self.batches.values())
        if most > self.capacity:
            raise ValueError(f"filters for {self.capacity:,} items do not hold the {most:,} of this plan")


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one peer for one mix and one batch.

    Attributes:
        peer, mix, batch: of whom, and of what.
        items: the items of one try.
        wall: microseconds an item.
        client: microseconds of the client's processor time an item.
        server: microseconds of the server's commands an item.
        received: bytes an item that the server reads, the least of the tries.
        sent: bytes an item that the server writes, the least of the tries.
        false_positives: the new items of all tries that were answered "seen".
        new_items: the new items of all tries.
    """

    peer: str
    mix: str
    batch: int
    items: int
    wall: Best
    client: Best
    server: Best
    received: float
    sent: float
    false_positives: int
    new_items: int

    @property
    def items_a_second(self) -> float:
        """Items a second of wall time, in the fastest try."""
        return 1e6 / self.wall.value

    def to_json(self) -> dict[str, object]:
        """Return all fields, and items a second."""
        return asdict(self) | {"items_a_second": self.items_a_second}


def opened(names: Sequence[str], plan: Plan, server: str, stack: ExitStack) -> tuple[dict[str, Peer], dict[str, str]]:
    """Open peers and warm them; the stack closes them.

    Returns:
        The open peers by name, and the reason of each that is left out.
    """
    peers: dict[str, Peer] = {}
    left_out: dict[str, str] = {}
    for name in names:
        peer = ALL[name]()
        try:
            peer.open(plan.capacity, plan.error_rate, server)
        except Missing as error:
            left_out[name] = str(error)
            continue
        stack.callback(peer.close)
        peers[name] = peer
        uris = warm()
        insert(peer, uris, WARM_BATCH)
        if (known := sum(peer.seen(batch) for batch in cut(uris, WARM_BATCH))) != len(uris):
            raise WrongAnswer(f"{name} has forgotten {len(uris) - known} of {len(uris)} items")
    return peers, left_out


def cut(uris: Sequence[str], size: int) -> list[Sequence[str]]:
    """Return the batches of a try."""
    return [uris[start : start + size] for start in range(0, len(uris), size)]


def insert(peer: Peer, uris: Sequence[str], size: int) -> int:
    """Insert in batches of at most ``size`` that the peer takes; return how many were new."""
    return sum(map(peer.insert, cut(uris, min(size, peer.batches.most))))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try.

    Attributes:
        used: what it took.
        items: how many items it had.
        new: how many of them were new.
        missed: how many new ones were answered "seen".
    """

    used: Used
    items: int
    new: int
    missed: int


def attempt(peer: Peer, given: Try, size: int, counters: ServerCounters) -> Attempt:
    """Insert the URIs of a try in batches.

    Raises:
        WrongAnswer: more were answered "new" than are.
    """
    batches = cut(given.uris, size)
    watch = Watch(counters)
    new = sum(map(peer.insert, batches))
    used = watch.stop()
    if new > given.new:
        raise WrongAnswer(f"{peer.name} answered {new} times new, of {given.new} new items")
    return Attempt(used, len(given.uris), given.new, given.new - new)


def measure(peers: Mapping[str, Peer], plan: Plan, counters: ServerCounters) -> Iterator[Cell]:
    """Yield the cells of each mix and batch: of every peer that takes such batches."""
    dice = random.Random(plan.seed)
    for place, (mix, (size, items)) in enumerate(itertools.product(plan.mixes, plan.batches.items())):
        racing = {
            name: contestant(peer, tries(mix, items, place, plan.seed), size, counters)
            for name, peer in peers.items()
            if size in peer.batches
        }
        for name, found in race(racing, lambda each: each.used.wall, plan.rule, dice).items():
            yield cell(name, mix, size, plan.rule, found)


def contestant(peer: Peer, given: Iterator[Try], size: int, counters: ServerCounters) -> Runner:
    """Return a function that makes the next try of a peer."""
    return lambda: attempt(peer, next(given), size, counters)


def cell(name: str, mix: str, batch: int, rule: Rule, found: Sequence[Attempt]) -> Cell:
    """Return the figures of tries, an item."""
    items = found[0].items
    wall, client, server = (
        best_of([1e6 * getattr(each.used, figure) / items for each in found], rule)
        for figure in ("wall", "client", "server")
    )
    received, sent = (min(getattr(each.used, figure) for each in found) / items for figure in ("received", "sent"))
    missed, new = sum(each.missed for each in found), sum(each.new for each in found)
    return Cell(name, mix, batch, items, wall, client, server, received, sent, missed, new)
