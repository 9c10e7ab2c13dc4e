"""One connector for many asyncio tasks: their commands go out together, in one pipeline."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from urifilter_redis.engine.routes import GIVEN
from urifilter_redis.protocol.outcomes import Unsent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.transport.connections import AsyncConnector

__all__ = ["SharedConnector"]

#: Pipelines in flight at once: while the server runs one, the next one travels.
PIPELINES = 2

#: The most commands in a pipeline of several tasks; each may take the server up to 8 ms. One task may send more.
COMMANDS_A_PIPELINE = 32


@dataclass(slots=True, eq=False)
class _Wanted:
    """The commands of one task that wait for a pipeline.

    Attributes:
        commands: the commands to send.
        outcomes: the future that gets one outcome for each command.
        since: the loop's time at which the task began to wait, seconds.
    """

    commands: Sequence[Arguments]
    outcomes: asyncio.Future[list[Any]]
    since: float

    def settle(self, outcomes: list[Any]) -> None:
        if not self.outcomes.done():
            self.outcomes.set_result(outcomes)

    def fail(self, why: str) -> None:
        """Settle all commands as ``Unsent``."""
        self.settle([Unsent(ConnectionError(why))] * len(self.commands))


class SharedConnector:
    """Sends the commands of many tasks in shared pipelines; each task gets the outcomes of its own commands.

    Each node of a Redis Cluster has pipelines of its own, so that one that is away holds up nobody who asks others. The
    commands of a cancelled task may run, if their pipeline has been sent.
    """

    def __init__(
        self, connector: AsyncConnector, patience: float, note: Callable[[RedisError], object] = lambda _: None
    ) -> None:
        """Share a connector.

        Args:
            connector: the connector that sends the pipelines.
            patience: seconds after which commands that still wait for a pipeline are ``Unsent``.
            note: a function that is called with each error that the server answers.
        """
        self.shown = connector.shown
        self._note, self._patience = note, patience
        self._connector = connector
        self._pumps: dict[str, _Pumps] = {}

    @property
    def waiting(self) -> int:
        """The tasks whose commands wait for a pipeline."""
        return sum(each.waiting for each in self._pumps.values())

    def equip(self, session: Session) -> None:
        """See ``AsyncConnector.equip``."""
        self._connector.equip(session)

    async def send(self, commands: Sequence[Arguments], _: object = None) -> list[Any]:
        """Send commands once; return one outcome for each command (see ``steps.Send``)."""
        routes = self._connector.routes
        if routes.alone:
            return await self._pumps_of(GIVEN).send(commands)
        places: dict[str, list[int]] = {}
        for place, command in enumerate(commands):
            places.setdefault(routes.node_of(command) or GIVEN, []).append(place)
        sending = (self._pumps_of(node).send([commands[place] for place in some]) for node, some in places.items())
        outcomes: list[Any] = [None] * len(commands)
        for some, answered in zip(places.values(), await asyncio.gather(*sending), strict=True):
            for place, outcome in zip(some, answered, strict=True):
                outcomes[place] = outcome
        return outcomes

    def _pumps_of(self, node: str) -> _Pumps:
        found = self._pumps.get(node)
        if found is None:
            found = self._pumps[node] = _Pumps(self._connector, self._patience, self._note)
        return found

    async def close(self) -> None:
        """Fail the waiting commands, wait for the pipelines in flight, and close the connections."""
        await asyncio.gather(*(each.close() for each in self._pumps.values()))
        await self._connector.close()


class _Pumps:
    """The pipelines to one node, and the commands that wait for one; see ``SharedConnector``."""

    def __init__(self, connector: AsyncConnector, patience: float, note: Callable[[RedisError], object]) -> None:
        self._connector, self._patience, self._note = connector, patience, note
        self._waiting: deque[_Wanted] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pumping = 0

    @property
    def waiting(self) -> int:
        """The tasks whose commands wait for a pipeline."""
        return len(self._waiting)

    async def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send commands once; return one outcome for each command."""
        loop = asyncio.get_running_loop()
        wanted = _Wanted(commands, loop.create_future(), loop.time())
        self._waiting.append(wanted)
        if self._pumping < PIPELINES:
            self._pumping += 1
            pump = asyncio.create_task(self._pump())
            self._tasks.add(pump)
            pump.add_done_callback(self._tasks.discard)
        return await wanted.outcomes

    async def _pump(self) -> None:
        try:
            while taken := self._take():
                await self._send(taken)
        finally:
            self._pumping -= 1  # no await since the queue was empty, so that a later task starts another pump

    async def _send(self, taken: Sequence[_Wanted]) -> None:
        try:
            outcomes = await self._connector.send([command for wanted in taken for command in wanted.commands])
        except Exception as error:  # noqa: BLE001 - raised in each task whose commands were sent
            for wanted in taken:
                if not wanted.outcomes.done():
                    wanted.outcomes.set_exception(error)
            return
        begin = 0
        for wanted in taken:
            wanted.settle(outcomes[begin : begin + len(wanted.commands)])
            begin += len(wanted.commands)
        for outcome in outcomes:
            if isinstance(outcome, RedisError):
                self._note(outcome)

    def _take(self) -> list[_Wanted]:
        """Take waiting commands for one pipeline; drop those of cancelled tasks, and those that waited too long."""
        taken: list[_Wanted] = []
        size, since = 0, asyncio.get_running_loop().time() - self._patience
        while self._waiting and (not taken or size + len(self._waiting[0].commands) <= COMMANDS_A_PIPELINE):
            wanted = self._waiting.popleft()
            if wanted.since < since:
                wanted.fail("the server is too slow for the number of requests")
            elif not wanted.outcomes.done():
                taken.append(wanted)
                size += len(wanted.commands)
        return taken

    async def close(self) -> None:
        """Fail the waiting commands, and wait for the pipelines in flight."""
        while self._waiting:
            self._waiting.popleft().fail("the connector was closed")
        await asyncio.gather(*self._tasks)
