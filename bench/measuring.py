"""Measures one peer: its tries, and the figures of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from bench.kbest import Rule, best_of
from bench.peers import Peer
from bench.streams import WARM, Try, Uris
from bench.tables import Row
from bench.usage import ServerCounters, Used, Watch

#: A percentile is told if at least so many calls lie beyond it.
BEYOND = 1


class WrongAnswer(Exception):
    """A peer did not answer as it must: its figures would be of other work."""


def warm_up(peer: Peer) -> None:
    """Insert the URIs that ``seen`` draws of.

    Raises:
        WrongAnswer: the peer does not know them then.
    """
    uris = Uris(range(WARM))
    ask(peer.insert, cut(uris, min(peer.fill, peer.batches[-1])))
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
    peer: Peer, counters: ServerCounters, given: Try, size: int, news: Callable[[Sequence[str]], int] | None = None
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


def cell(peer: str, mix: str, batch: int, rule: Rule, found: Sequence[Attempt]) -> Row:
    """Return the figures of one peer for one mix and one batch.

    Returns:
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
        items_a_second: of wall time, in the fastest try.
    """
    items = found[0].items

    def best(figure: str) -> Row:
        """Return the fields of a ``Best``; a spread over nothing is None."""
        made = asdict(best_of([1e6 * getattr(each.used, figure) / items for each in found], rule))
        return made | ({"spread": None} if math.isinf(made["spread"]) else {})

    row = {"peer": peer, "mix": mix, "batch": batch, "items": items}
    row |= {figure: best(figure) for figure in ("wall", "client", "server")}
    row |= {figure: min(getattr(each.used, figure) for each in found) / items for figure in ("received", "sent")}
    row |= {"longest": 1e6 * max(each.used.longest for each in found)}
    row |= percentiles([1e6 * call for each in found for call in each.calls])
    row |= {"false_positives": sum(each.missed for each in found), "new_items": sum(each.new for each in found)}
    return row | {"clients": 1, "items_a_second": 1e6 / row["wall"]["value"]}


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Return the least of the values that 50, 99, and 99.9 of 100 values do not exceed; None: there are too few."""
    ordered = sorted(values)
    return {
        name: ordered[math.ceil(share * len(ordered)) - 1] if len(ordered) * (1 - share) >= BEYOND - 1e-9 else None
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }
