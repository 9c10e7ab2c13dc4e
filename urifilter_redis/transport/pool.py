"""The connections of one process, or of one event loop, to a server, and the limit of callers that use them.

The limit lets so many callers in at once, and the others in the order in which they came. It has no lock, which Ctrl-C
or a fork could leave locked: one dict, whose single steps are atomic, says it all.
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

from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as Late

from urifilter_redis.protocol.outcomes import Unsent

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONNECTIONS", "Pool", "PoolLimit", "Waiter", "limit_of"]

#: Connections that a client has at most in one process (asyncio: in each event loop), unless its caller or its URL
#: says otherwise: more do not make it faster, and a server takes 10,000 of all its clients together.
CONNECTIONS = 64


class Waiter:
    """One caller's; ``wake`` is called when it may be its turn, once it waits."""

    wake: Callable[[], object] | None = None


class PoolLimit:
    """So many places; a caller has one as soon as, of those who came before it, so few are left.

    Callers enter, wait if they must, and leave in any case (``finally``), also if they never got a place.

    Attributes:
        count: of places.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiters: dict[Waiter, None] = {}  # in order; the first ``count`` have a place

    def enter(self, waiter: Waiter) -> bool:
        """Come last; return whether there is a place at once."""
        self._waiters[waiter] = None
        return len(self._waiters) <= self.count

    def leave(self, waiter: Waiter) -> None:
        """Give up the place, or the waiting for one; nothing happens the second time."""
        self._waiters.pop(waiter, None)
        if len(self._waiters) >= self.count:
            for each in self._served():
                if each.wake is not None:
                    each.wake()

    def wait(self, waiter: Waiter, patience: float) -> bool:
        """Wait for a place for so many seconds; return whether there is one."""
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        waiter.wake, end = functools.partial(woken.put, None), time.monotonic() + patience
        while waiter not in self._served():  # it may have been served before it could be woken
            try:
                woken.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
        return self._is_served(waiter)

    async def wait_async(self, waiter: Waiter, patience: float) -> bool:
        """Do as ``wait``, awaited."""
        woken = asyncio.Event()
        waiter.wake = woken.set
        if waiter not in self._served():
            try:
                async with asyncio.timeout(patience):
                    await woken.wait()
            except TimeoutError:
                pass
        return self._is_served(waiter)

    def full(self, patience: float) -> Unsent:
        """Return the outcome for a caller whose patience ended first."""
        text = f"no connection became free in {patience:g} s, as all {self.count} are in use"
        return Unsent(NoConnection(f"{text}: raise connections=, or ask less at once"))

    def _is_served(self, waiter: Waiter) -> bool:
        waiter.wake = None  # once is enough
        return waiter in self._served()

    def _served(self) -> list[Waiter]:
        return list(self._waiters)[: self.count]


# A pool that several filters share (the caller's client) has its places once; in a forked child anew, because those
# who had them are the parent's.
_limits: weakref.WeakKeyDictionary[Any, dict[int, PoolLimit]] = weakref.WeakKeyDictionary()


def limit_of(redis_pool: Any) -> PoolLimit:
    """Return the places of a pool of connections of redis-py, in this process."""
    of_processes, process = _limits.setdefault(redis_pool, {}), os.getpid()
    return of_processes.get(process) or of_processes.setdefault(process, PoolLimit(redis_pool.max_connections))


#: The version of the protocol in which a server sends nothing that was not asked for. In the next one it may tell a
#: connection to go elsewhere, and redis-py's pool sees to that.
QUIET = 2


class Pool:
    """A pool of redis-py, and the idle connections that were taken out of it for good.

    Taking a connection out of redis-py's pool and putting it back costs as much as a small command: locks, events,
    counters. So idle connections of a pool that nobody else uses stay out of it. Without a lock, which Ctrl-C or a fork
    could leave locked: the single steps of a list are atomic.

    Attributes:
        redis_pool: redis-py's pool of connections, blocking or asyncio's.
        ours: whether nobody else uses the pool.
        limit: the places of those who use its connections.
        idle: the connections that are kept.
        keeps: whether connections that work are kept, and not released to the pool.
    """

    def __init__(self, redis_pool: Any, *, ours: bool = False, mends: bool = True) -> None:
        """Make a pool.

        Args:
            redis_pool: redis-py's pool of connections.
            ours: whether nobody else uses the pool.
            mends: whether a connection that the server has closed meanwhile is opened again without a word. Behind
                Sentinels it is not: the server may have been a master, and have come back as one for a moment.
        """
        self.redis_pool, self.ours, self.limit, self._mends = redis_pool, ours, limit_of(redis_pool), mends
        self.idle: list[Any] = []
        self.keeps = ours and redis_pool.connection_kwargs.get("protocol") == QUIET

    def take(self) -> Any:
        """Take a connection that works; raises as redis-py does."""
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
        """Connect, unless that is done, with one wait for all of it.

        redis-py's own waits, which it does without a ``socket_timeout``, swallow a cancellation on Python 3.11.
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


def _closed() -> ConnectionBroken:
    return ConnectionBroken("the server has closed the connection")
