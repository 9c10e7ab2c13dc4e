"""One server: its connections, and one pipeline sent once over one of them."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.transport.loops import PerLoop, lent, stays
from urifilter_redis.transport.origins import IMPOSSIBLE
from urifilter_redis.transport.places import Turn
from urifilter_redis.transport.sending import Sending, broken_off, packed, send_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.engine.steps import Meanwhile
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.protocol.outcomes import Unsent
    from urifilter_redis.transport.lanes import Lane

__all__ = ["AsyncServer", "Server"]


class Unable(Protocol):
    """Makes the outcome of commands for which there was no connection."""

    def __call__(self, error: Exception, *, reached: bool) -> Unsent:
        """Return the outcome."""
        ...


class Server:
    """Sends pipelines to one server, blocking; thread-safe, and after a fork over connections of its own.

    Callers wait for a free connection in the order in which they come.

    Args:
        make: makes the connections of a process.
        patience: seconds for which a caller waits for a free connection.
        unsent: makes the outcome of commands for which there was no connection (see ``Origin.unsent``).
        reached: whether the server was there before, so that it may come back.
    """

    def __init__(
        self,
        make: Callable[[], Lane],
        patience: float,
        unsent: Unable,
        *,
        reached: bool = True,
    ) -> None:
        self._make, self._patience, self._unsent, self._reached = make, patience, unsent, reached
        # by process: redis-py's pool has a lock, which another thread may hold as this one forks
        self._lanes: dict[int, Lane] = {}

    @property
    def lane(self) -> Lane:
        """The connections of this process."""
        process = os.getpid()
        return self._lanes.get(process) or self._lanes.setdefault(process, self._make())

    def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        sending = Sending(self._lanes.get(os.getpid()) or self.lane, commands)
        try:
            self.post(sending)
            if meanwhile is not None:
                meanwhile()
            return sending.receive()
        finally:
            sending.leave()

    def begin(self, commands: Sequence[Arguments]) -> Sending:
        """Send a pipeline once, and do not wait for its replies; ``Sending.finish`` returns the outcomes.

        Each pipeline that is not finished has a connection of its own.
        """
        sending = self.sending(commands)
        try:
            self.post(sending)
        except BaseException:
            sending.leave()
            raise
        return sending

    def sending(self, commands: Sequence[Arguments]) -> Sending:
        """Return a pipeline that is not sent yet, and has no connection."""
        return Sending(self.lane, commands)

    def post(self, sending: Sending) -> None:
        """Wait for a connection, and send a pipeline; ``Sending.leave`` gives the connection back in any case."""
        lane, turn = sending.lane, sending.turn
        if not lane.places.enter(turn) and not lane.places.wait(turn, self._patience):
            sending.fail(lane.places.full(self._patience))
            return
        try:
            sending.connection = lane.take()
        except (RedisError, OSError, *IMPOSSIBLE) as error:
            sending.fail(self._unsent(error, reached=self._reached))
            return
        self._reached = True
        try:
            sending.connection.send_packed_command(packed(sending.commands))
        except (RedisError, OSError) as error:
            sending.fail(Unanswered(error))

    def close(self) -> None:
        """Close this process's connections, unless they are a given client's."""
        lane = self._lanes.pop(os.getpid(), None)
        if lane is not None and lane.ours:
            lane.pool.disconnect()


class AsyncServer:
    """Sends pipelines to one server, awaited; each event loop and process has connections of its own.

    Tasks wait for a free connection in the order in which they come.

    Args:
        make: makes the connections of an event loop.
        patience: seconds for which a task waits for a free connection.
        unsent: makes the outcome of commands for which there was no connection (see ``Origin.unsent``).
        reached: whether the server was there before, so that it may come back.
        theirs: the connections of a given client, which are for one loop; None: none was given.
    """

    def __init__(
        self,
        make: Callable[[], Lane],
        patience: float,
        unsent: Unable,
        *,
        reached: bool = True,
        theirs: Lane | None = None,
    ) -> None:
        self._patience, self._unsent, self._reached = patience, unsent, reached
        if theirs is None:
            self._lanes = PerLoop(make, _close)
        else:
            self._lanes = PerLoop(lent(theirs, "the redis.asyncio.Redis that was given"), stays)

    def check_loop(self) -> None:
        """Check, before anything is sent, that there can be connections here.

        Raises:
            UriFilterError: a forked child is in its parent's loop; or a client that was given belongs to another loop.
        """
        self._lanes.get()

    async def send(self, commands: Sequence[Arguments], meanwhile: Meanwhile | None = None) -> list[Any]:
        """Send a pipeline once; return an outcome a command (see ``steps.Send``)."""
        lane, turn, connection, whole = await self._lanes.kept(), Turn(), None, False
        try:
            if not lane.places.enter(turn) and not await lane.places.wait_async(turn, self._patience):
                return [lane.places.full(self._patience)] * len(commands)
            try:
                connection = await lane.take_async()
            except (RedisError, OSError, RuntimeError, *IMPOSSIBLE) as error:
                why = broken_off(error) if isinstance(error, RuntimeError) else error
                # in a thread, because starting the embedded server again takes a while
                outcome = await asyncio.to_thread(self._unsent, why, reached=self._reached)
                return [outcome] * len(commands)
            self._reached = True
            outcomes, whole = await send_async(connection, commands, meanwhile)
            return outcomes
        finally:
            try:
                if whole and lane.keeps:
                    lane.idle.append(connection)
                elif connection is not None:
                    await lane.pool.release(connection)
            finally:
                lane.places.leave(turn)

    async def close(self) -> None:
        """Close this loop's connections, unless they are a given client's."""
        await self._lanes.close()


async def _close(lane: Lane) -> None:
    await lane.pool.disconnect()
