"""Processes that share the filters of peers, and begin at the same moment."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from bench.measuring import Attempt, ask, cut, judged
from bench.peers import ALL, Shared
from bench.peers.on_server import OnServer
from bench.usage import ServerCounters, Used, Watch, cpu

if TYPE_CHECKING:
    from bench.streams import Try

#: Each process starts from a clean one, which has loaded the peers once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["bench.crowd"])

#: Seconds that a process waits for the others to begin.
PATIENCE = 120


@dataclass(frozen=True, slots=True)
class Filters:
    """Where the filters are, and of which sizes.

    Attributes:
        capacity: items that each was made for.
        error_rate: of each.
        server: the URL of the server.
    """

    capacity: int
    error_rate: float
    server: str


@dataclass(frozen=True, slots=True)
class Work:
    """The part of one process.

    Attributes:
        peer: a name of ``bench.peers.ALL``.
        method: ``insert`` or ``seen``.
        uris: what it is called with.
        size: the items of one call.
    """

    peer: str
    method: str
    uris: Sequence[str]
    size: int


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
    return isinstance(ALL[name](), OnServer)


def _live(pipe: Connection, barrier: Barrier, filters: Filters) -> None:
    """Do work until there is none."""
    with ExitStack() as stack:
        peers: dict[str, Shared] = {}
        while work := pipe.recv():
            try:
                if work.peer not in peers:
                    peers[work.peer] = _joined(work.peer, filters, stack)
                pipe.send(_do(peers[work.peer], work, barrier))
            except Exception as error:  # noqa: BLE001 - the one who gave the work raises it
                barrier.abort()
                pipe.send(f"{work.peer}: {error!r}")


def _joined(name: str, filters: Filters, stack: ExitStack) -> Shared:
    """Return a peer that has connected and asked once."""
    peer = cast("Shared", ALL[name]())
    stack.callback(peer.close)
    peer.join(filters.capacity, filters.error_rate, filters.server)
    peer.seen(["https://www.example.com/"])
    return peer


def _do(peer: Shared, work: Work, barrier: Barrier) -> Done:
    batches = cut(work.uris, work.size)
    barrier.wait(PATIENCE)
    begin, used = time.monotonic(), cpu()
    total, calls = ask(getattr(peer, work.method), batches)
    return Done(begin, time.monotonic(), cpu() - used, total, calls)


class Crowd:
    """So many processes; a context that ends them.

    Args:
        count: the number of processes.
        filters: which filters they share; peers are opened by others before they get work.
    """

    def __init__(self, count: int, filters: Filters) -> None:
        self.count = count
        self._barrier = CONTEXT.Barrier(count)
        self._pipes = []
        self._processes = []
        for _ in range(count):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_live, args=(theirs, self._barrier, filters), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def do(self, peer: str, method: str, uris: Sequence[Sequence[str]], size: int) -> list[Done]:
        """Give each process its share of URIs, and wait until all are done.

        Raises:
            RuntimeError: one has failed.
        """
        for pipe, share in zip(self._pipes, uris, strict=True):
            pipe.send(Work(peer, method, share, size))
        done = [pipe.recv() for pipe in self._pipes]
        if wrong := [each for each in done if isinstance(each, str)]:
            raise RuntimeError("; ".join(wrong))
        return done

    def attempt(self, peer: str, given: Try, size: int, counters: ServerCounters) -> Attempt:
        """Insert the URIs of a try, every process its share of them."""
        watch = Watch(counters)
        done = self.do(peer, "insert", [given.uris[number :: self.count] for number in range(self.count)], size)
        used = together(watch.stop(), done)
        return judged(peer, given, sum(each.total for each in done), used, [t for each in done for t in each.calls])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if error is None:
                pipe.send(None)
            else:
                process.terminate()
            process.join()
            pipe.close()


def together(used: Used, done: Sequence[Done]) -> Used:
    """Return what processes have used: from the first beginning to the last end, and the processor time of all."""
    wall = max(each.end for each in done) - min(each.begin for each in done)
    return replace(used, wall=wall, client=sum(each.client for each in done))
