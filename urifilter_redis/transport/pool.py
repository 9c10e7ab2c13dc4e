"""The connections of one process, or of one event loop, to a server, and the limit of callers that use them.

Neither has a lock, which Ctrl-C or a fork could leave locked: the single steps of a dict and of a list are atomic.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import time
import weakref
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as Late

from urifilter_redis.protocol.outcomes import Unsent

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONNECTIONS", "Pool", "Waiter"]

#: Connections that a client has at most in one process (asyncio: in each event loop), unless its caller or its URL
#: says otherwise: more do not make it faster, and a server takes 10,000 of all its clients together.
CONNECTIONS = 64

#: The version of the protocol in which a server sends nothing that was not asked for. In the next one it may tell a
#: connection to go elsewhere, and redis-py's pool sees to that.
QUIET = 2


class Waiter:
    """One caller of a ``PoolLimit``.

    Attributes:
        wake: called when the caller may have been admitted; None: it does not wait.
    """

    wake: Callable[[], object] | None = None


class PoolLimit:
    """Admits at most ``count`` callers at a time, first come first served.

    A caller enters, waits if it must, and leaves in any case (``finally``), even if it was never admitted.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiters: dict[Waiter, None] = {}  # in order; the first ``count`` are admitted

    def enter(self, waiter: Waiter) -> bool:
        """Queue a caller; return whether it is admitted at once."""
        self._waiters[waiter] = None
        return len(self._waiters) <= self.count

    def leave(self, waiter: Waiter) -> None:
        """Remove a caller, admitted or not; do nothing the second time."""
        self._waiters.pop(waiter, None)
        if len(self._waiters) >= self.count:
            for each in self._admitted():
                if each.wake is not None:
                    each.wake()

    def wait(self, waiter: Waiter, patience: float) -> bool:
        """Wait for at most ``patience`` seconds; return whether the caller is admitted."""
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        waiter.wake, end = functools.partial(woken.put, None), time.monotonic() + patience
        while waiter not in self._admitted():  # the caller may have been admitted before it could be woken
            try:
                woken.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
        waiter.wake = None  # once is enough
        return waiter in self._admitted()

    async def wait_async(self, waiter: Waiter, patience: float) -> bool:
        """Do as ``wait``, awaited."""
        woken = asyncio.Event()
        waiter.wake = woken.set
        if waiter not in self._admitted():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await woken.wait()
        waiter.wake = None
        return waiter in self._admitted()

    def full(self, patience: float) -> Unsent:
        """Return the outcome for a caller whose patience ended first."""
        text = f"no connection became free in {patience:g} s, as all {self.count} are in use"
        return Unsent(NoConnection(f"{text}: raise connections=, or ask less at once"))

    def _admitted(self) -> list[Waiter]:
        return list(self._waiters)[: self.count]


# Several filters may share a pool (the caller's client), so a pool has one limit; in a forked child a new one, because
# the callers of the old one are the parent's.
_limits: weakref.WeakKeyDictionary[Any, dict[int, PoolLimit]] = weakref.WeakKeyDictionary()


class Pool:
    """A pool of redis-py, and the idle connections that were taken out of it for good.

    Taking a connection out of redis-py's pool and putting it back costs as much as a small command: locks, events,
    counters. So idle connections of a pool that nobody else uses stay out of it.

    Attributes:
        redis_pool: redis-py's pool of connections, blocking or asyncio's.
        ours: whether nobody else uses the pool.
        limit: admits the callers of the pool.
        idle: the connections that are kept.
        keeps: whether connections that work are kept, and not released to the pool.
    """

    def __init__(self, redis_pool: Any, *, ours: bool = False, mends: bool = True) -> None:
        """Wrap a pool of redis-py.

        ``mends`` says whether a connection that the server has closed meanwhile is opened again without a word. Behind
        Sentinels it is not: the server may have been a master, and have come back as one for a moment.
        """
        self.redis_pool, self.ours, self._mends = redis_pool, ours, mends
        limits, process = _limits.setdefault(redis_pool, {}), os.getpid()
        self.limit = limits.get(process) or limits.setdefault(process, PoolLimit(redis_pool.max_connections))
        self.idle: list[Any] = []
        self.keeps = ours and redis_pool.connection_kwargs.get("protocol") == QUIET

    def take(self) -> Any:
        """Take a connection that works. The errors are redis-py's."""
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = None
        if connection is None:  # not within the block above, whose error would count as a cause of what this raises
            return self.redis_pool.get_connection()
        whole = False
        try:
            whole = not connection.can_read()  # it can if the server has closed it
        except (RedisError, OSError):
            pass
        finally:
            if not whole:
                self.redis_pool.release(connection)
        if not whole and not self._mends:
            with contextlib.suppress(IndexError):  # until there is none
                while True:
                    self.redis_pool.release(self.idle.pop())
            raise _closed()
        return connection if whole else self.redis_pool.get_connection()  # which mends it

    async def take_async(self) -> Any:
        """Do as ``take``, awaited."""
        kept, whole = bool(self.idle), False
        connection = self.idle.pop() if kept else self.redis_pool.get_available_connection()
        try:
            if not kept or await _is_closed(connection):
                if kept and not self._mends:
                    raise _closed()
                await self._connect(connection)
            whole = True
        finally:
            if not whole:
                await self.redis_pool.release(connection)
            while not whole and not self._mends and self.idle:
                await self.redis_pool.release(self.idle.pop())
        return connection

    async def _connect(self, connection: Any) -> None:
        """Connect, unless that is done, with one timeout for all of it.

        redis-py's own timeouts swallow a cancellation on Python 3.11. They are off without a ``socket_timeout``.
        """
        limit, connection.socket_timeout = connection.socket_timeout, None
        longest = None if limit is None else limit + connection.socket_connect_timeout
        try:
            async with asyncio.timeout(longest):
                await self.redis_pool.ensure_connection(connection)
        except BaseException as error:
            await connection.disconnect(nowait=True)  # it may be connected, and not know its user yet
            if isinstance(error, TimeoutError):
                raise Late(f"no answer within {longest:g} s") from None
            raise
        finally:
            connection.socket_timeout = limit


async def _is_closed(connection: Any) -> bool:
    """Whether a connection is closed, or has something to read, as when the server has closed it."""
    if not connection.is_connected:
        return True
    can_read = getattr(connection, "can_read", None) or connection.can_read_destructive  # its older name
    try:
        return bool(await can_read())
    except (RedisError, OSError):  # as some versions raise when the server has closed it
        return True


def _closed() -> NoConnection:
    return NoConnection("the server has closed the connection")
