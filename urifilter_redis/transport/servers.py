"""One server: its connections, and one pipeline that is sent once over one of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import pack_command
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as Late

from urifilter_redis.engine.steps import Meanwhile
from urifilter_redis.protocol.calls import Arguments
from urifilter_redis.protocol.outcomes import Unanswered, Unsent, nonsense
from urifilter_redis.protocol.replies import fits
from urifilter_redis.transport.endpoints import IMPOSSIBLE
from urifilter_redis.transport.loops import PerLoop
from urifilter_redis.transport.pool import Pool, Waiter

# What redis-py raises for an error reply. But for ResponseError it closes the connection then.
_ERROR_REPLIES = (ResponseError, AuthenticationError, BusyLoadingError)

# uvloop's RuntimeError for writing to a connection that has broken off; asyncio's own loop drops the bytes, or has an
# OSError.
_BROKEN_OFF = "unable to perform operation on <"


class Sending:
    """A pipeline of the blocking client. Other work can be done between its commands and its replies.

    Attributes:
        pool: the connections of which the pipeline takes one.
        waiter: the pipeline as a caller of the pool.
        connection: the pipeline's connection; None: it has none.
        commands: the commands to send.
        left: whether it has given all back.
    """

    __slots__ = ("_outcomes", "_whole", "commands", "connection", "left", "pool", "waiter")

    def __init__(self, pool: Pool, commands: Sequence[Arguments]) -> None:
        self.pool, self.waiter = pool, Waiter()
        self.connection: Any = None
        self.commands = commands
        self.left = False
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
            for command in self.commands:
                try:
                    reply = self.connection.read_response(disable_decoding=True)
                    if not fits(command, reply):
                        raise _misfit(reply)
                    outcomes.append(reply)
                except _ERROR_REPLIES as refusal:
                    outcomes.append(_without_frames(refusal))
                    whole = whole and isinstance(refusal, ResponseError)
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
        """Give the connection back, and leave the pool's limit; a connection that still owes replies is broken off."""
        connection, self.connection = self.connection, None
        try:
            if connection is not None and self._whole and not self.pool.closed:
                self.pool.idle.append(connection)
            elif connection is not None:
                connection.disconnect()
        finally:
            self.pool.limit.leave(self.waiter)
            self.left = True


def _without_frames(refusal: RedisError) -> RedisError:
    """Return an error reply without the frames that read the reply.

    The frames know the client, and a client that nobody has closed would keep its connections until the garbage
    collector comes.
    """
    return refusal.with_traceback(None)


def _misfit(reply: Any) -> NoConnection:
    """Return the error for a reply that has not the shape of its command's: whose it is, nobody knows.

    So it is no answer, and neither is what comes after it.
    """
    return NoConnection(str(nonsense(reply)))


def _packed(commands: Sequence[Arguments]) -> list[bytes]:
    # not by the connection, which checks every argument before it calls the same function
    return [b"".join(map(pack_command, commands))]  # type: ignore[arg-type]  # its stub knows tuples of one element


def _broken_off(error: RuntimeError) -> ConnectionError:
    """Return the error of a broken connection for uvloop's RuntimeError; raise any other RuntimeError again."""
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
    # one timeout for all replies: redis-py's own costs more than a reply, and swallows a cancellation on Python 3.11
    limit, connection.socket_timeout = connection.socket_timeout, None
    try:
        async with asyncio.timeout(limit) as timeout:
            try:
                await connection.send_packed_command(_packed(commands))
            except RuntimeError as error:
                raise _broken_off(error) from error
            if meanwhile is not None:
                meanwhile()
            now = asyncio.get_running_loop().time
            moved = now()
            for command in commands:
                # moved on seldom, as most replies come together; a reply has at least nine tenths of its time
                if limit is not None and (time := now()) > moved + limit / 10:
                    timeout.reschedule(time + limit)
                    moved = time
                try:
                    reply = await connection.read_response(disable_decoding=True)
                    if not fits(command, reply):
                        raise _misfit(reply)
                    outcomes.append(reply)
                except _ERROR_REPLIES as refusal:
                    outcomes.append(_without_frames(refusal))
                    whole = whole and isinstance(refusal, ResponseError)
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


class Server:
    """Sends pipelines to one server, blocking; thread-safe, and after a fork over connections of its own.

    Callers wait for a free connection in the order in which they come.

    Args:
        make: makes the connections of a process.
        patience: seconds for which a caller waits for a free connection.
        unsent: makes the outcome of commands for which there was no connection (see ``Endpoint.unsent``).
        reached: whether the server was there before, so that it may come back.
    """

    def __init__(
        self, make: Callable[[], Pool], patience: float, unsent: Callable[..., Unsent], *, reached: bool = True
    ) -> None:
        self._make, self._patience, self._unsent, self._reached = make, patience, unsent, reached
        # by process: a forked child has none of its parent's
        self._pools: dict[int, Pool] = {}

    @property
    def pool(self) -> Pool:
        """The connections of this process."""
        process = os.getpid()
        return self._pools.get(process) or self._pools.setdefault(process, self._make())

    def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        sending = Sending(self._pools.get(os.getpid()) or self.pool, commands)
        try:
            self.post(sending)
            if meanwhile is not None:
                meanwhile()
            return sending.receive()
        finally:
            try:
                sending.leave()
            finally:
                if not sending.left:  # Ctrl-C as the first call begins would cost a place in the pool for ever
                    sending.leave()

    def begin(self, commands: Sequence[Arguments]) -> Sending:
        """Send a pipeline once, and do not wait for its replies; ``Sending.finish`` returns the outcomes.

        Each pipeline that is not finished has a connection of its own.
        """
        sending = Sending(self.pool, commands)
        try:
            self.post(sending)
        except BaseException:
            sending.leave()
            raise
        return sending

    def post(self, sending: Sending) -> None:
        """Wait for a connection, and send a pipeline; ``Sending.leave`` gives the connection back in any case."""
        pool, waiter = sending.pool, sending.waiter
        if not pool.limit.enter(waiter) and not pool.limit.wait(waiter, self._patience):
            sending.fail(pool.limit.full(self._patience))
            return
        try:
            sending.connection = pool.take()
        except (RedisError, OSError, *IMPOSSIBLE) as error:
            sending.fail(self._unsent(error, reached=self._reached))
            return
        self._reached = True
        try:
            sending.connection.send_packed_command(_packed(sending.commands))
        except (RedisError, OSError) as error:
            sending.fail(Unanswered(error))

    def close(self) -> None:
        """Close this process's connections."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()


class AsyncServer:
    """Sends pipelines to one server, awaited; each event loop and process has connections of its own.

    Tasks wait for a free connection in the order in which they come. The arguments are those of ``Server``.

    Attributes:
        pools: the connections of each loop.
    """

    def __init__(
        self, make: Callable[[], Pool], patience: float, unsent: Callable[..., Unsent], *, reached: bool = True
    ) -> None:
        self._patience, self._unsent, self._reached = patience, unsent, reached
        self.pools = PerLoop(make, Pool.close_async)

    async def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        pool, waiter, connection, whole = await self.pools.kept(), Waiter(), None, False
        try:
            if not pool.limit.enter(waiter) and not await pool.limit.wait_async(waiter, self._patience):
                return [pool.limit.full(self._patience)] * len(commands)
            try:
                connection = await pool.take_async()
            except (RedisError, OSError, RuntimeError, *IMPOSSIBLE) as error:
                why = _broken_off(error) if isinstance(error, RuntimeError) else error
                # in a thread, because starting the embedded server again takes a while
                outcome = await asyncio.to_thread(self._unsent, why, reached=self._reached)
                return [outcome] * len(commands)
            self._reached = True
            outcomes, whole = await send_async(connection, commands, meanwhile)
            return outcomes
        finally:
            try:
                if whole and not pool.closed:
                    pool.idle.append(connection)
                elif connection is not None:
                    await connection.disconnect(nowait=True)
            finally:
                pool.limit.leave(waiter)

    async def close(self) -> None:
        """Close this loop's connections."""
        await self.pools.close()
