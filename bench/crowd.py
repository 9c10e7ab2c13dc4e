"""Processes that share the filters of peers, and begin at the same moment."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.synchronize import Barrier
from typing import Any, Self

from bench.measuring import Attempt, ask, cut, judged
from bench.peers import ALL
from bench.peers.on_server import OnServer
from bench.streams import Try
from bench.usage import ServerCounters, Watch, cpu

#: Each process starts from a clean one, which has loaded the peers once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["bench.crowd"])

#: Seconds that a process waits for the others to begin.
PATIENCE = 120

#: What a process has: the ``barrier``, and what its peers are given to ``join``.
_HERE: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Done:
    """What one process has done.

    Attributes:
        begin, end: seconds of the clock that all processes share.
        client: seconds of its processor time.
        total: the sum of the answers.
        calls: the seconds of each call.
    """

    begin: float
    end: float
    client: float
    total: int
    calls: Sequence[float]


def shared(name: str) -> bool:
    """Tell whether processes can share the filter of a peer."""
    return issubclass(ALL[name], OnServer)


def _begin(barrier: Barrier, *where: object) -> None:
    """Begin a process."""
    _HERE.update(barrier=barrier, join=where)


@cache
def _joined(name: str) -> OnServer:
    """Return a peer that has connected and asked once."""
    peer = ALL[name]()
    assert isinstance(peer, OnServer)
    peer.join(*_HERE["join"])
    peer.seen(["https://www.example.com/"])
    return peer


def _do(name: str, method: str, uris: Sequence[str], size: int) -> Done:
    """Call a method of a peer with batches of URIs, once all processes are here."""
    try:
        peer, batches = _joined(name), cut(uris, size)
        _HERE["barrier"].wait(PATIENCE)
        begin, used = time.monotonic(), cpu()
        total, calls = ask(getattr(peer, method), batches)
        return Done(begin, time.monotonic(), cpu() - used, total, calls)
    except Exception as error:
        _HERE["barrier"].abort()
        raise RuntimeError(f"{name}: {error!r}") from error


class Crowd:
    """So many processes, which share filters that others open before they give work; a context that ends them.

    Args:
        count: the number of processes.
        capacity: items that each filter was made for.
        error_rate: of each filter.
        server: the URL of the server.
    """

    def __init__(self, count: int, capacity: int, error_rate: float, server: str) -> None:
        self.count = count
        given = (CONTEXT.Barrier(count), capacity, error_rate, server)
        self._pool = ProcessPoolExecutor(count, mp_context=CONTEXT, initializer=_begin, initargs=given)

    def do(self, peer: str, method: str, uris: Sequence[Sequence[str]], size: int) -> list[Done]:
        """Give each process its share of URIs, and wait until all are done; each waits for the others before it begins.

        Raises:
            RuntimeError: one has failed.
        """
        running = [self._pool.submit(_do, peer, method, share, size) for share in uris]
        if wrong := [str(error) for each in running if (error := each.exception())]:
            raise RuntimeError("; ".join(wrong))
        return [each.result() for each in running]

    def attempt(self, peer: str, counters: ServerCounters, given: Try, size: int) -> Attempt:
        """Insert the URIs of a try, every process its share of them."""
        watch = Watch(counters)
        done = self.do(peer, "insert", [given.uris[number :: self.count] for number in range(self.count)], size)
        used = watch.stop()
        # from the first beginning to the last end, and the processor time of all
        wall = max(each.end for each in done) - min(each.begin for each in done)
        used = replace(used, wall=wall, client=sum(each.client for each in done))
        return judged(peer, given, sum(each.total for each in done), used, [t for each in done for t in each.calls])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
