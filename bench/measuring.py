"""Measures peers: each mix and batch is a race of all peers that take such batches."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial

from bench.kbest import Best, Rule, best_of, race
from bench.peers import Peer
from bench.servers import Missing
from bench.streams import WARM, Try, tries, warm
from bench.usage import ServerCounters, Used, Watch

#: A mix, the items of one call, and those of one try.
Kind = tuple[str, int, int]

#: A percentile is told if at least so many calls lie beyond it.
BEYOND = 1


class WrongAnswer(Exception):
    """A peer did not answer as it must: its figures would be of other work."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one peer for one mix and one batch.

    Attributes:
        peer, mix, batch: of whom, and of what.
        items: the items of one try.
        wall: microseconds an item.
        client: microseconds of the clients' processor time an item.
        server: microseconds of the server's commands an item.
        received: bytes an item that the server reads, the least of the tries.
        sent: bytes an item that the server writes, the least of the tries.
        longest: microseconds of the server's longest command in any of the tries.
        p50, p99, p999: microseconds that 50, 99, and 99.9 of 100 calls of all tries took at most; None: too few calls.
        false_positives: the new items of all tries that were answered "seen".
        new_items: the new items of all tries.
        clients: how many processes shared the items of a try.
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
    longest: float
    p50: float | None
    p99: float | None
    p999: float | None
    false_positives: int
    new_items: int
    clients: int = 1

    @property
    def items_a_second(self) -> float:
        """Items a second of wall time, in the fastest try."""
        return 1e6 / self.wall.value

    def to_json(self) -> dict[str, object]:
        """Return all fields, and items a second; a spread over nothing is None."""
        made = asdict(self) | {"items_a_second": self.items_a_second}
        for figure in ("wall", "client", "server"):
            if math.isinf(made[figure]["spread"]):
                made[figure]["spread"] = None
        return made


def opened(
    chosen: Iterable[Peer], capacity: int, error_rate: float, server: str, stack: ExitStack
) -> tuple[dict[str, Peer], dict[str, str]]:
    """Open peers; the stack closes them.

    Returns:
        The open peers by name, and the reason of each that is left out.
    """
    peers: dict[str, Peer] = {}
    left_out: dict[str, str] = {}
    for peer in chosen:
        stack.callback(peer.close)
        try:
            peer.open(capacity, error_rate, server)
        except Missing as error:
            left_out[peer.name] = str(error)
        else:
            peers[peer.name] = peer
    return peers, left_out


def warm_up(peer: Peer) -> None:
    """Insert the URIs that ``seen`` draws of.

    Raises:
        WrongAnswer: the peer does not know them then.
    """
    uris = warm()
    ask(peer.insert, cut(uris, min(peer.fill, peer.batches.most)))
    known, _ = ask(peer.seen, cut(uris, peer.fill))
    if known != len(uris):
        raise WrongAnswer(f"{peer.name} has forgotten {len(uris) - known} of {len(uris)} items")


def cut(uris: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield batches."""
    return (uris[start : start + size] for start in range(0, len(uris), size))


def ask(method: Callable[[Sequence[str]], int], batches: Iterable[Sequence[str]]) -> tuple[int, list[float]]:
    """Call a method of a peer with each batch; return the sum of its answers, and the seconds of each call."""
    total, times, clock = 0, [], time.perf_counter
    for batch in batches:
        begin = clock()
        total += method(batch)
        times.append(clock() - begin)
    return total, times


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try.

    Attributes:
        used: what it took.
        items: how many items it had.
        new: how many of them were new.
        missed: how many new ones were answered "seen".
        calls: the seconds of each call.
    """

    used: Used
    items: int
    new: int
    missed: int
    calls: Sequence[float] = ()


def attempt(
    peer: Peer, given: Try, size: int, counters: ServerCounters, news: Callable[[Sequence[str]], int] | None = None
) -> Attempt:
    """Insert the URIs of a try in batches, or ask in another way how many of a batch are new.

    Raises:
        WrongAnswer: more were answered "new" than are.
    """
    batches = list(cut(given.uris, size))
    watch = Watch(counters)
    new, calls = ask(news or peer.insert, batches)
    return judged(peer.name, given, new, watch.stop(), calls)


def judged(name: str, given: Try, new: int, used: Used, calls: Sequence[float]) -> Attempt:
    """Return a try whose answers are possible.

    Raises:
        WrongAnswer: more were answered "new" than are.
    """
    if new > given.new:
        raise WrongAnswer(f"{name} answered {new} times new, of {given.new} new items")
    return Attempt(used, len(given.uris), given.new, given.new - new, calls)


def measure(
    peers: Mapping[str, Peer],
    kinds: Iterable[Kind],
    rule: Rule,
    seed: int,
    attempt_of: Callable[[Peer, Try, int], Attempt],
    known: int = WARM,
    figure: str = "wall",
    first: int = 0,
) -> Iterator[Cell]:
    """Race the peers in each kind of calls; yield the cells of every peer that takes such batches.

    Args:
        peers: open and warm.
        kinds: what they race in.
        rule: when tries agree.
        seed: draws the orders and the URIs.
        attempt_of: makes a try of a peer, with so many items a call.
        known: so many of the first URIs are in each filter.
        figure: that of ``Used`` about which the tries agree.
        first: so many kinds went into the same filters before.
    """
    dice = random.Random(seed)
    for place, (mix, size, items) in enumerate(kinds, first):
        racing = {
            name: partial(_attempt, attempt_of, peer, tries(mix, items, place, seed, known), size)
            for name, peer in peers.items()
            if size in peer.batches
        }
        for name, found in race(racing, lambda each: getattr(each.used, figure), rule, dice).items():
            yield cell(name, mix, size, rule, found)


def _attempt(attempt_of: Callable[[Peer, Try, int], Attempt], peer: Peer, given: Iterator[Try], size: int) -> Attempt:
    return attempt_of(peer, next(given), size)


def cell(name: str, mix: str, batch: int, rule: Rule, found: Sequence[Attempt]) -> Cell:
    """Return the figures of tries, an item."""
    items = found[0].items
    wall, client, server = (
        best_of([1e6 * getattr(each.used, figure) / items for each in found], rule)
        for figure in ("wall", "client", "server")
    )
    received, sent = (min(getattr(each.used, figure) for each in found) / items for figure in ("received", "sent"))
    missed, new = sum(each.missed for each in found), sum(each.new for each in found)
    longest = 1e6 * max(each.used.longest for each in found)
    calls = percentiles([1e6 * call for each in found for call in each.calls])
    return Cell(name, mix, batch, items, wall, client, server, received, sent, longest, *calls, missed, new)


def percentiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the least of the values that 50, 99, and 99.9 of 100 values do not exceed; None: there are too few."""
    ordered = sorted(values)
    p50, p99, p999 = (
        ordered[math.ceil(share * len(ordered)) - 1] if len(ordered) * (1 - share) >= BEYOND - 1e-9 else None
        for share in (0.5, 0.99, 0.999)
    )
    return p50, p99, p999
