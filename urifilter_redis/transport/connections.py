"""Connections: from a URL, a redis-py client or nothing, and one pipeline sent once over one of them.

redis-py's own retries are left out (a lost reply must not be asked for again behind our back, and ten silent
retries take longer than callers expect); ``exchange`` is the only loop that retries.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.protocol.outcomes import Unanswered, Unsent
from urifilter_redis.transport.addresses import Address, without_password
from urifilter_redis.transport.lanes import Lane
from urifilter_redis.transport.loops import PerLoop, lent, stays
from urifilter_redis.transport.places import CONNECTIONS, Turn
from urifilter_redis.transport.sending import Sending, broken_off, packed, send_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.transport.addresses import Packed

__all__ = ["AsyncConnector", "Connector", "check_url"]

#: What redis-py raises for options of a connection that cannot be: an encoding, a name of a host.
_IMPOSSIBLE = (LookupError, TypeError, ValueError, AttributeError)

#: What no server can be behind, as long as none ever was: a name that does not resolve, a socket that is not there.
_NOWHERE = (socket.gaierror, FileNotFoundError)


def _from_url(kind: Any, retry: Any, url: str, timeouts: Timeouts, connections: int = CONNECTIONS) -> Any:
    """Make a pool of connections; nothing is connected. What the URL's query says comes first."""
    try:
        without_password(url)  # finds what is wrong, too
        return kind.from_url(
            url,
            max_connections=connections,
            socket_connect_timeout=timeouts.connect,
            socket_timeout=timeouts.reply,
            retry=retry,
            protocol=2,
        )
    except (ValueError, TypeError):  # whose text may have a part of the password
        text = "the server's address is a URL such as redis://localhost:6379/0, rediss:// or unix:///path"
        raise ValueError(f"{text}; in a password / and @ are written %2F and %40") from None


def check_url(url: str) -> None:
    """Check that a URL can be an address of a server; nothing is connected.

    Raises:
        ValueError: it cannot.
    """
    _from_url(redis.ConnectionPool, None, url, Timeouts())


def _packed(address: Address | None) -> Packed:
    if address is None:
        text = "a filter that was opened with a client object is neither pickled nor copied"
        raise TypeError(f"{text}: open it with the server's address (redis='redis://…'), or anew in the other process")
    return address.packed()


def _limit(given: object, connections: int | None) -> int:
    """Return how many connections there may be."""
    if connections is None:
        return CONNECTIONS
    if not isinstance(given, Address):
        raise TypeError("connections is for a server's address: a client that is given has its own max_connections")
    if isinstance(connections, bool) or not isinstance(connections, int) or connections < 1:
        raise ValueError(f"connections is a whole number from 1 up and not {connections!r}")
    return connections


def _unsent(error: Exception, *, reached: bool) -> Unsent:
    """Say that there was no connection; ``reached``: there was one before, so that the server may come back."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    nowhere = not reached and any(isinstance(each, _NOWHERE) for each in causes)
    return Unsent(error, hopeless=nowhere or any(isinstance(each, _IMPOSSIBLE) for each in causes))


def _revive(address: Address | None) -> OSError | None:
    """See to it that the embedded server runs, if it is that; return the reason why it cannot."""
    try:
        if address is not None:
            address.revive()
    except OSError as error:  # its folder is gone, say
        return error
    return None


def _shown(client: Any) -> str:
    """Describe a client that the caller made."""
    known = {"host": "localhost", "port": 6379, "db": 0} | client.connection_pool.connection_kwargs
    secure = any("SSL" in each.__name__ for each in client.connection_pool.connection_class.__mro__)
    scheme = "rediss" if secure else "redis"
    url = "unix://{path}?db={db}" if "path" in known else scheme + "://{host}:{port}/{db}"
    return without_password(url.format(**known))


def _no_client(given: object, wanted: str) -> TypeError:
    """Say that an object is no client for here, and which address its server has, if it is another library's client."""
    kind, known = type(given), getattr(getattr(given, "connection_pool", None), "connection_kwargs", None)
    text = f"redis= takes a URL or a {wanted} and not {kind.__module__}.{kind.__qualname__}"
    if not isinstance(known, dict):
        return TypeError(text)
    password = ", with its user and password" if known.get("password") else ""
    return TypeError(f"{text}: give the server's URL: redis={_shown(given)!r}{password}")


class Connector:
    """Sends pipelines, blocking; thread-safe, and after a fork over connections of its own.

    Callers wait for a free connection in the order in which they come, each for at most ``timeouts.total``.
    """

    def __init__(self, given: Address | redis.Redis, timeouts: Timeouts, connections: int | None = None) -> None:
        self._address = given if isinstance(given, Address) else None
        self._reached = self._address is not None and self._address.embedded is not None
        self.connections, self._patience, limit = connections, timeouts.total, _limit(given, connections)
        if isinstance(given, Address):
            self._make: Callable[[], Lane] = functools.partial(_lane, given, timeouts, limit)
            if given.is_found:
                self._make()  # raises for an impossible address; nothing is connected
            self.shown = given.shown
        elif isinstance(given, redis.Redis):
            self._make, self.shown = functools.partial(Lane, given.connection_pool), _shown(given)
        else:
            raise _no_client(given, "redis.Redis")
        # by process: redis-py's pool has a lock, which another thread may hold as this one forks
        self._lanes: dict[int, Lane] = {}

    def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        sending = Sending(self.lane, commands)
        try:
            self._begin(sending)
            return sending.receive()
        finally:
            sending.leave()

    def begin(self, commands: Sequence[Arguments]) -> Sending:
        """Send a pipeline once, and do not wait for its replies; ``Sending.finish`` returns the outcomes.

        Each pipeline that is not finished has a connection of its own.
        """
        sending = Sending(self.lane, commands)
        try:
            self._begin(sending)
        except BaseException:
            sending.leave()
            raise
        return sending

    def _begin(self, sending: Sending) -> None:
        lane, turn = sending.lane, sending.turn
        if not lane.places.enter(turn) and not lane.places.wait(turn, self._patience):
            sending.fail(lane.places.full(self._patience))
            return
        try:
            sending.connection = lane.take()
        except (RedisError, OSError, *_IMPOSSIBLE) as error:
            sending.fail(_unsent(_revive(self._address) or error, reached=self._reached))
            return
        self._reached = True
        try:
            sending.connection.send_packed_command(packed(sending.commands))
        except (RedisError, OSError) as error:
            sending.fail(Unanswered(error))

    @property
    def lane(self) -> Lane:
        """The connections of this process."""
        process = os.getpid()
        return self._lanes.get(process) or self._lanes.setdefault(process, self._make())

    def packed(self) -> Packed:
        """Return the server's address, for a filter that is opened anew; see ``Address.packed``.

        Raises:
            TypeError: a client was given.
        """
        return _packed(self._address)

    def close(self) -> None:
        """Close what was opened here; a client that the caller gave stays open."""
        if self._address is not None:
            if lane := self._lanes.pop(os.getpid(), None):
                lane.pool.disconnect()
            self._address.close()


class AsyncConnector:
    """Sends pipelines, awaited; each event loop and process has connections of its own.

    Tasks wait for a free connection in the order in which they come, each for at most ``timeouts.total``.
    """

    def __init__(
        self, given: Address | redis.asyncio.Redis, timeouts: Timeouts, connections: int | None = None
    ) -> None:
        self._address = given if isinstance(given, Address) else None
        self._reached = self._address is not None and self._address.embedded is not None
        self.connections, self._patience, limit = connections, timeouts.total, _limit(given, connections)
        if isinstance(given, Address):
            make = functools.partial(_lane_async, given, timeouts, limit)
            if given.is_found:
                make()  # raises for an impossible address; nothing is connected
            self.shown = given.shown
            self._lanes = PerLoop(make, _close_async)
        elif isinstance(given, redis.asyncio.Redis):
            self.shown = _shown(given)
            lane = Lane(given.connection_pool)
            self._lanes = PerLoop(lent(lane, "the redis.asyncio.Redis that was given"), stays)
        else:
            raise _no_client(given, "redis.asyncio.Redis")

    def check_loop(self) -> None:
        """Check, before anything is sent, that there can be connections here.

        Raises:
            UriFilterError: a forked child is in its parent's loop; or a client that was given belongs to another loop.
        """
        self._lanes.get()

    async def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        lane, turn, connection, whole = await self._lanes.kept(), Turn(), None, False
        try:
            if not lane.places.enter(turn) and not await lane.places.wait_async(turn, self._patience):
                return [lane.places.full(self._patience)] * len(commands)
            try:
                connection = await lane.take_async()
            except (RedisError, OSError, RuntimeError, *_IMPOSSIBLE) as error:
                found = broken_off(error) if isinstance(error, RuntimeError) else error
                why = await asyncio.to_thread(_revive, self._address) or found
                return [_unsent(why, reached=self._reached)] * len(commands)
            self._reached = True
            outcomes, whole = await send_async(connection, commands)
            return outcomes
        finally:
            try:
                if whole and lane.keeps:
                    lane.idle.append(connection)
                elif connection is not None:
                    await lane.pool.release(connection)
            finally:
                lane.places.leave(turn)

    async def find(self) -> None:
        """Find the address, if that was put off: in a thread, because starting the embedded server takes a while."""
        if self._address is not None and not self._address.is_found:
            await asyncio.to_thread(self._address.find)

    def packed(self) -> Packed:
        """Return the server's address, for a filter that is opened anew; see ``Address.packed``.

        Raises:
            TypeError: a client was given.
        """
        return _packed(self._address)

    async def close(self) -> None:
        """Close what was opened in this loop; a client that the caller gave stays open."""
        await self._lanes.close()
        if self._address is not None:
            self._address.close()


async def _close_async(lane: Lane) -> None:
    await lane.pool.disconnect()


def _lane(address: Address, timeouts: Timeouts, connections: int) -> Lane:
    retry = redis.retry.Retry(NoBackoff(), 0)
    return Lane(_from_url(redis.ConnectionPool, retry, address.url, timeouts, connections), ours=True)


def _lane_async(address: Address, timeouts: Timeouts, connections: int) -> Lane:
    retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    return Lane(_from_url(redis.asyncio.ConnectionPool, retry, address.url, timeouts, connections), ours=True)
