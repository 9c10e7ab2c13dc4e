"""Measures peers: each mix and batch is a race of all peers that take such batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.kbest import Best, Rule, best_of, race
from bench.peers import ALL, Peer
from bench.servers import Missing
from bench.streams import Try, tries, warm
from bench.usage import ServerCounters, Used, Watch

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
    """

    mixes: tuple[str, ...]
    batches: Mapping[int, int]
    rule: Rule
    capacity: int
    error_rate: float
    seed: int


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


def opened(names: Sequence[str], plan: Plan, server: str) -> tuple[dict[str, Peer], dict[str, str]]:
    """Open peers and warm them.

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


def attempt(peer: Peer, given: Try, size: int, counters: ServerCounters) -> tuple[Used, int]:
    """Insert the URIs of a try; return what that took, and how many new ones were answered "seen".

    Raises:
        WrongAnswer: more were answered "new" than are.
    """
    batches = cut(given.uris, size)
    watch = Watch(counters)
    new = sum(map(peer.insert, batches))
    used = watch.stop()
    if new > given.new:
        raise WrongAnswer(f"{peer.name} answered {new} times new, of {given.new} new items")
    return used, given.new - new


def measure(peers: Mapping[str, Peer], plan: Plan, counters: ServerCounters) -> Iterator[list[Cell]]:
    """Yield the cells of each mix and batch: of every peer that takes such batches."""
    dice, place = random.Random(plan.seed), 0
    for mix in plan.mixes:
        for size, items in plan.batches.items():
            racing = {name: peer for name, peer in peers.items() if size in peer.batches}
            runners: dict[str, Callable[[], tuple[Used, int]]] = {}
            given: dict[str, list[Try]] = {name: [] for name in racing}
            for name, peer in racing.items():
                runners[name] = _runner(peer, tries(mix, items, place, plan.seed), size, counters, given[name])
            found = race(runners, lambda each: each[0].wall, plan.rule, dice)
            place += 1
            yield [
                _cell(name, mix, size, plan.rule, used, sum(each.new for each in given[name]))
                for name, used in found.items()
            ]


def _runner(
    peer: Peer, stream: Iterator[Try], size: int, counters: ServerCounters, given: list[Try]
) -> Callable[[], tuple[Used, int]]:
    """Return a function that takes the next try of a stream."""

    def run() -> tuple[Used, int]:
        given.append(next(stream))
        return attempt(peer, given[-1], size, counters)

    return run


def _cell(  # noqa: PLR0913, PLR0917 - its key, and its tries
    name: str, mix: str, size: int, rule: Rule, found: Sequence[tuple[Used, int]], new_items: int
) -> Cell:
    raise NotImplementedError
