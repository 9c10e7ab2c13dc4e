"""One pipeline on its way over one connection: its commands go out, and its replies come back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import TimeoutError as Late

from urifilter_redis.protocol.outcomes import Unanswered, Unsent
from urifilter_redis.transport.places import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.steps import Meanwhile
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.transport.lanes import Lane

__all__ = ["Sending", "broken_off", "packed", "send_async"]

# What redis-py raises for an error reply, and then closes the connection.
_CLOSING = (AuthenticationError, BusyLoadingError)

# uvloop's RuntimeError for writing to a connection that has broken off; asyncio's own loop drops the bytes, or has an
# OSError.
_BROKEN_OFF = "unable to perform operation on <"


class Sending:
    """A pipeline of the blocking client. Other work can be done between its commands and its replies.

    Attributes:
        lane: the connections of which it takes one.
        turn: its turn among the callers that want a connection.
        connection: its connection; None: it has none.
        commands: its commands.
    """

    __slots__ = ("_outcomes", "_whole", "commands", "connection", "lane", "turn")

    def __init__(self, lane: Lane, commands: Sequence[Arguments]) -> None:
        self.lane, self.turn = lane, Turn()
        self.connection: Any = None
        self.commands = commands
        self._outcomes: list[Any] = []
        self._whole = False

    def fail(self, outcome: Unsent | Unanswered) -> None:
        """Give this outcome to each command that has none."""
        self._outcomes += [outcome] * (len(self.commands) - len(self._outcomes))

    def receive(self) -> list[Any]:
        """Return one outcome a command. The connection is broken off unless all commands are answered."""
        outcomes, whole = self._outcomes, True
        if outcomes:  # nothing was sent
            return outcomes
        try:
            for _ in self.commands:
                try:
                    outcomes.append(self.connection.read_response(disable_decoding=True))
                except ResponseError as refusal:
                    outcomes.append(_reply(refusal))
                except _CLOSING as refusal:
                    outcomes.append(_reply(refusal))
                    whole = False
            self._whole = whole
        except (RedisError, OSError) as error:
            self.fail(Unanswered(error))
        return outcomes

    def finish(self) -> list[Any]:
        """Return one outcome a command, and give the connection back."""
        try:
            return self.receive()
        finally:
            self.leave()

    def leave(self) -> None:
        """Give the connection and the place back; a connection that still owes replies is broken off."""
        connection, self.connection = self.connection, None
        try:
            if connection is not None and self._whole and self.lane.keeps:
                self.lane.idle.append(connection)
            elif connection is not None:
                if not self._whole:
                    connection.disconnect()
                self.lane.pool.release(connection)
        finally:
            self.lane.places.leave(self.turn)


def _reply(refusal: RedisError) -> RedisError:
    """Return an error reply without the frames that read it: they would keep the client alive, as they know the reply.

    Then the connections of a client that nobody has closed would be open until the garbage collector comes.
    """
    return refusal.with_traceback(None)


def packed(commands: Sequence[Arguments]) -> list[bytes]:
    """Return the bytes of a pipeline, as a connection sends them."""
    # not by the connection, which looks at every argument before it calls the same function
    return [b"".join(map(pack_command, commands))]  # type: ignore[arg-type]  # its stub knows tuples of one element


def broken_off(error: RuntimeError) -> ConnectionError:
    """Return the error of a connection that has broken off for that of uvloop; any other is raised again.

    Raises:
        RuntimeError: it is another one.
    """
    if _BROKEN_OFF not in str(error):
        raise error
    return ConnectionError(str(error))


async def send_async(
    connection: Any, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None
) -> tuple[list[Any], bool]:
    """Send commands over a connection of asyncio, which is broken off unless all are answered.

    Return the outcomes, and whether the connection is as good as before.
    """
    outcomes: list[Any] = []
    whole = True
    # one wait for all of them: redis-py's own costs more than a reply, and swallows a cancellation on Python 3.11
    limit, connection.socket_timeout = connection.socket_timeout, None
    try:
        async with asyncio.timeout(limit) as wait:
            await _post(connection, commands)
            if meanwhile is not None:
                meanwhile()
            patience = _Patience(wait, limit)
            for _ in commands:
                patience.renew()
                try:
                    outcomes.append(await connection.read_response(disable_decoding=True))
                except ResponseError as refusal:
                    outcomes.append(_reply(refusal))
                except _CLOSING as refusal:
                    outcomes.append(_reply(refusal))
                    whole = False
    except (RedisError, OSError) as error:
        await connection.disconnect(nowait=True)
        late = isinstance(error, TimeoutError)
        missed = Unanswered(Late(f"no answer within {limit:g} s") if late else error)
        outcomes += [missed] * (len(commands) - len(outcomes))
        whole = False
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        connection.socket_timeout = limit
    return outcomes, whole


async def _post(connection: Any, commands: Sequence[Arguments]) -> None:
    try:
        await connection.send_packed_command(packed(commands))
    except RuntimeError as error:
        raise broken_off(error) from error


class _Patience:
    """The time for the next reply: it is moved on seldom, because most replies of a pipeline come together.

    Args:
        wait: ends the wait.
        limit: seconds for each reply; None: there is no limit. A reply gets at least nine tenths of them.
    """

    __slots__ = ("_limit", "_moved", "_now", "_wait")

    def __init__(self, wait: asyncio.Timeout, limit: float | None) -> None:
        self._wait, self._limit = wait, limit
        self._now = asyncio.get_running_loop().time
        self._moved = self._now()

    def renew(self) -> None:
        """Wait for the next reply."""
        if self._limit is not None and (now := self._now()) > self._moved + self._limit / 10:
            self._wait.reschedule(now + self._limit)
            self._moved = now
