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
from collections.abc import Callable, Mapping
from typing import Any

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as Late

from urifilter_redis.protocol.outcomes import Unsent

#: Connections that a client has at most in one process (asyncio: in each event loop), unless its caller or its URL
#: says otherwise: more do not make it faster, and a server takes 10,000 of all its clients together.
CONNECTIONS = 64

#: The version of the protocol in which a server sends nothing that was not asked for. In the next one it may tell a
#: connection to go elsewhere, and its replies have other shapes.
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


# Several filters may share a client that is given, so its pool has one limit; in a forked child a new one, because the
# callers of the old one are the parent's.
_limits: weakref.WeakKeyDictionary[Any, dict[int, PoolLimit]] = weakref.WeakKeyDictionary()


def limit_of(redis_pool: Any) -> PoolLimit:
    """Return the limit of all who use the pool of a client that is given."""
    limits, process = _limits.setdefault(redis_pool, {}), os.getpid()
    return limits.get(process) or limits.setdefault(process, PoolLimit(redis_pool.max_connections))


class Pool:
    """Connections to one server, which are redis-py's; its pool is not used.

    A connection is idle here only once its handshake is whole, and all that was sent over it is answered, whatever was
    raised meanwhile; every other one is closed. redis-py's pool keeps one whose handshake was interrupted, and the
    answers over it are those of the commands before.

    Attributes:
        options: the options of the connections.
        limit: admits the callers of the pool.
        idle: the connections that nobody uses. One that was taken comes back if all that was sent over it is answered.
        closed: whether the pool is closed; then nothing is put here any more.
    """

    def __init__(self, kind: Any, options: Mapping[str, Any], limit: PoolLimit, *, mends: bool = True) -> None:
        """Make a pool; nothing is connected.

        Args:
            kind: redis-py's class of connections, blocking or asyncio's.
            options: the options of the connections.
            limit: admits the callers of the pool.
            mends: whether a connection that the server has closed meanwhile is replaced without a word. Behind
                Sentinels it is not: the server may have been a master, and have come back as one for a moment.
        """
        # no number is packed: SELECT has the database as text
        self.options = {**options, "db": str(options["db"])} if options.get("db") else dict(options)
        self.limit, self._kind, self._mends = limit, kind, mends
        self.idle: list[Any] = []
        self.closed = False

    def make(self) -> Any:
        """Return a new connection, which is not connected."""
        return self._kind(**self.options)

    def take(self) -> Any:
        """Take a connection that works. The errors are redis-py's."""
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = None
        if connection is None:  # not within the block above, whose error would count as a cause of what this raises
            return self._connected()
        whole = False
        try:
            whole = not connection.can_read()  # it can if the server has closed it
        except (RedisError, OSError):
            pass
        finally:
            if not whole:
                connection.disconnect()
        if whole:
            return connection
        if not self._mends:
            self._close_idle()
            raise _closed()
        return self._connected()

    def _connected(self) -> Any:
        connection, whole = self.make(), False
        try:
            connection.connect()
            whole = True
        finally:
            if not whole:
                connection.disconnect()
        return connection

    def close(self) -> None:
        """Close the connections; whoever uses one closes it after that."""
        self.closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):  # until there is none
            while True:
                self.idle.pop().disconnect()

    async def take_async(self) -> Any:
        """Do as ``take``, awaited."""
        while self.idle:
            connection = self.idle.pop()
            if not await _is_closed(connection):
                return connection
            await connection.disconnect(nowait=True)
            if not self._mends:
                while self.idle:
                    await self.idle.pop().disconnect(nowait=True)
                raise _closed()
        return await self._connected_async()

    async def _connected_async(self) -> Any:
        """Return a new connection, with one timeout for all of its handshake.

        redis-py's own timeouts swallow a cancellation on Python 3.11. They are off without a ``socket_timeout``.
        """
        connection = self.make()
        limit, connection.socket_timeout = connection.socket_timeout, None
        longest = None if limit is None else limit + connection.socket_connect_timeout
        try:
            async with asyncio.timeout(longest):
                await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)  # it may be connected, and not know its user yet
            if isinstance(error, TimeoutError):
                raise Late(f"no answer within {longest:g} s") from None
            raise
        finally:
            connection.socket_timeout = limit
        return connection

    async def close_async(self) -> None:
        """Do as ``close``, awaited."""
        self.closed = True
        while self.idle:
            # Late: a process that was stopped has missed the end of a connection, which is closed all the same.
            with contextlib.suppress(Late):
                await self.idle.pop().disconnect()


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
