"""Who may have a connection now: so many callers at once, and the others in the order in which they came.

Without a lock, which Ctrl-C or a fork could leave locked: one dict, whose single steps are atomic, says it all.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import time
import weakref
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as NoConnection

from urifilter_redis.protocol.outcomes import Unsent

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONNECTIONS", "Places", "Turn", "places_of"]

#: Connections that a client has at most in one process (asyncio: in each event loop), unless its caller or its URL
#: says otherwise: more do not make it faster, and a server takes 10,000 of all its clients together.
CONNECTIONS = 64


class Turn:
    """One caller's; ``wake`` is called when it may be its turn, once it waits."""

    wake: Callable[[], object] | None = None


class Places:
    """So many places; a caller has one as soon as, of those who came before it, so few are left.

    Callers enter, wait if they must, and leave in any case (``finally``), also if they never got a place.

    Attributes:
        count: of places.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._turns: dict[Turn, None] = {}  # in order; the first ``count`` have a place

    def enter(self, turn: Turn) -> bool:
        """Come last; return whether there is a place at once."""
        self._turns[turn] = None
        return len(self._turns) <= self.count

    def leave(self, turn: Turn) -> None:
        """Give up the place, or the waiting for one; nothing happens the second time."""
        self._turns.pop(turn, None)
        if len(self._turns) >= self.count:
            for each in self._served():
                if each.wake is not None:
                    each.wake()

    def wait(self, turn: Turn, patience: float) -> bool:
        """Wait for a place for so many seconds; return whether there is one."""
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        turn.wake, end = functools.partial(woken.put, None), time.monotonic() + patience
        while turn not in self._served():  # it may have been served before it could be woken
            try:
                woken.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
        return self._is_served(turn)

    async def wait_async(self, turn: Turn, patience: float) -> bool:
        """Do as ``wait``, awaited."""
        woken = asyncio.Event()
        turn.wake = woken.set
        if turn not in self._served():
            try:
                async with asyncio.timeout(patience):
                    await woken.wait()
            except TimeoutError:
                pass
        return self._is_served(turn)

    def full(self, patience: float) -> Unsent:
        """Return the outcome for a caller whose patience ended first."""
        text = f"no connection became free in {patience:g} s, as all {self.count} are in use"
        return Unsent(NoConnection(f"{text}: raise connections=, or ask less at once"))

    def _is_served(self, turn: Turn) -> bool:
        turn.wake = None  # once is enough
        return turn in self._served()

    def _served(self) -> list[Turn]:
        return list(self._turns)[: self.count]


# A pool that several filters share (the caller's client) has its places once; in a forked child anew, because those
# who had them are the parent's.
_places: weakref.WeakKeyDictionary[Any, dict[int, Places]] = weakref.WeakKeyDictionary()


def places_of(pool: Any) -> Places:
    """Return the places of a pool of connections of redis-py, in this process."""
    of_processes, process = _places.setdefault(pool, {}), os.getpid()
    return of_processes.get(process) or of_processes.setdefault(process, Places(pool.max_connections))
