"""Fills a filter for real, and asks it about very many URIs: by processes if they can share it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.crowd import Crowd, Done, shared
from bench.measuring import ask, cut, percentiles
from bench.peers import Peer
from bench.streams import Uris
from bench.tables import Row
from bench.usage import ServerCounters, cpu

#: Numbers of URIs that nobody inserts begin here.
UNSEEN = 10**11


class Filler:
    """Works on the filters of a size: by a crowd on those of a server, by itself on others.

    Args:
        crowd: the processes.
        counters: of the server.
    """

    def __init__(self, crowd: Crowd, counters: ServerCounters) -> None:
        self._crowd, self._counters = crowd, counters

    def fill(self, peer: Peer, items: int, pieces: int) -> Row:
        """Put the first URIs in, piece by piece.

        Returns:
            How many ``items`` were put in, by how many ``processes``; for each piece, in ``rates``, the items that were
            in at its end, and the items a second; microseconds that 50, 99, and 99.9 of 100 calls took at most, and
            those of the server's longest command; how many new items ``passed`` as seen.
        """
        self._counters.reset()
        rates, calls, new = [], [], 0
        for number in range(pieces):
            piece = range(items * number // pieces, items * (number + 1) // pieces)
            done = self.do(peer, "insert", piece)
            seconds = max(each.end for each in done) - min(each.begin for each in done)
            rates.append((piece.stop, len(piece) / seconds))
            calls += [1e6 * call for each in done for call in each.calls]
            new += sum(each.total for each in done)
        longest = self._counters.read().longest if shared(peer.name) else 0.0
        made = {"items": items, "processes": len(done), "rates": rates, "longest": longest, "passed": items - new}
        return made | percentiles(calls)

    def do(self, peer: Peer, method: str, numbers: range) -> Sequence[Done]:
        """Call ``insert`` or ``seen`` with the URIs of numbers, each process with a part of them."""
        if shared(peer.name):
            parts = self._crowd.count
            shares = [Uris(_part(numbers, part, parts)) for part in range(parts)]
            return self._crowd.do(peer.name, method, shares, peer.fill)
        begin, used = time.monotonic(), cpu()
        total, calls = ask(getattr(peer, method), cut(Uris(numbers), peer.fill))
        return [Done(begin, time.monotonic(), cpu() - used, total, calls)]

    def false_positives(self, peer: Peer, asked: int) -> int:
        """Ask for URIs that nobody has inserted; return how many were answered "seen"."""
        return sum(each.total for each in self.do(peer, "seen", range(UNSEEN, UNSEEN + asked)))

    def false_negatives(self, peer: Peer, numbers: range) -> int:
        """Ask for URIs that were inserted; return how many were answered "new"."""
        return len(numbers) - sum(each.total for each in self.do(peer, "seen", numbers))


def _part(numbers: range, part: int, parts: int) -> range:
    """Return one of so many parts of numbers, which follow each other."""
    return numbers[len(numbers) * part // parts : len(numbers) * (part + 1) // parts]
