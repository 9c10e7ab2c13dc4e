"""A lane: the connections of one process, or of one event loop, to a server, and the places of those who use them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as Late

from urifilter_redis.transport.places import places_of

__all__ = ["Lane"]

#: The version of the protocol in which a server sends nothing that was not asked for. In the next one it may tell a
#: connection to go elsewhere, and redis-py's pool sees to that.
QUIET = 2


class Lane:
    """A pool of redis-py, and the idle connections that were taken out of it for good.

    Taking a connection out of redis-py's pool and putting it back costs as much as a small command: locks, events,
    counters. So idle connections of a pool that nobody else uses stay out of it. Without a lock, which Ctrl-C or a fork
    could leave locked: the single steps of a list are atomic.

    Attributes:
        pool: redis-py's pool of connections, blocking or asyncio's.
        ours: whether nobody else uses the pool.
        places: the places of those who use its connections.
        idle: the connections that are kept.
        keeps: whether connections that work are kept, and not released to the pool.
    """

    def __init__(self, pool: Any, *, ours: bool = False, mends: bool = True) -> None:
        """Make a lane.

        Args:
            pool: redis-py's pool of connections.
            ours: whether nobody else uses the pool.
            mends: whether a connection that the server has closed meanwhile is opened again without a word. Behind
                Sentinels it is not: the server may have been a master, and have come back as one for a moment.
        """
        self.pool, self.ours, self.places, self._mends = pool, ours, places_of(pool), mends
        self.idle: list[Any] = []
        self.keeps = ours and pool.connection_kwargs.get("protocol") == QUIET

    def take(self) -> Any:
        """Take a connection that works; raises as redis-py does."""
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = None
        if connection is None:  # not within the block above, whose error would count as a cause of what this raises
            return self.pool.get_connection()
        whole = False
        try:
            whole = not connection.can_read()  # it can if the server has closed it
        except (RedisError, OSError):
            pass
        finally:
            if not whole:
                self.pool.release(connection)
        if not whole and not self._mends:
            with contextlib.suppress(IndexError):  # until there is none
                while True:
                    self.pool.release(self.idle.pop())
            raise _closed()
        return connection if whole else self.pool.get_connection()  # which mends it

    async def take_async(self) -> Any:
        """Do as ``take``, awaited."""
        kept, whole = bool(self.idle), False
        connection = self.idle.pop() if kept else self.pool.get_available_connection()
        try:
            if not kept or await _is_closed(connection):
                if kept and not self._mends:
                    raise _closed()
                await self._connect(connection)
            whole = True
        finally:
            if not whole:
                await self.pool.release(connection)
            while not whole and not self._mends and self.idle:
                await self.pool.release(self.idle.pop())
        return connection

    async def _connect(self, connection: Any) -> None:
        """Connect, unless that is done, with one wait for all of it.

        redis-py's own waits, which it does without a ``socket_timeout``, swallow a cancellation on Python 3.11.
        """
        limit, connection.socket_timeout = connection.socket_timeout, None
        longest = None if limit is None else limit + connection.socket_connect_timeout
        try:
            async with asyncio.timeout(longest):
                await self.pool.ensure_connection(connection)
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
