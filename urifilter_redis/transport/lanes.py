"""A lane: the connections of one process, or of one event loop, to a server, and the places of those who use them."""

from __future__ import annotations

import contextlib
from typing import Any

from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import RedisError

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
        if not self.idle:
            return await self.pool.get_connection()
        connection, whole = self.idle.pop(), False
        try:
            if not self._mends and await _can_read(connection):
                raise _closed()
            await self.pool.ensure_connection(connection)
            whole = True
        finally:
            if not whole:
                await self.pool.release(connection)
            while not whole and not self._mends and self.idle:
                await self.pool.release(self.idle.pop())
        return connection


async def _can_read(connection: Any) -> bool:
    """Whether there is something to read, as of a connection that the server has closed; some versions raise then."""
    can_read = getattr(connection, "can_read", None) or connection.can_read_destructive  # its older name
    return bool(await can_read())


def _closed() -> ConnectionBroken:
    return ConnectionBroken("the server has closed the connection")
