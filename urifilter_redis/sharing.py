"""One connector for many tasks: what they send at about the same time goes out in one pipeline."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from urifilter_redis.steps import Unsent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.connection import AsyncConnector
    from urifilter_redis.steps import Arguments

__all__ = ["SharedConnector"]

#: Pipelines under way at once: while the server works on one, the next is on its way.
PIPELINES = 2

#: Commands of a pipeline, but for what one task sends at once; each may be a call of up to 8 ms.
COMMANDS_A_PIPELINE = 32


class SharedConnector:
    """Sends pipelines, awaited; tasks share pipelines, and each has its own commands' outcomes.

    A task that is cancelled leaves its commands with the others': they may run.
    """

    def __init__(self, connector: AsyncConnector, note: Callable[[RedisError], object] = lambda _: None) -> None:
        """Share a connector; ``note`` hears of every error that the server answers."""
        self.shown = connector.shown
        self._note = note
        self._connector = connector
        self._waiting: deque[tuple[Sequence[Arguments], asyncio.Future[list[Any]]]] = deque()
        self._pumps: set[asyncio.Task[None]] = set()

    async def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send commands once; return an outcome a command (see ``steps.Send``)."""
        outcomes: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((commands, outcomes))
        if len(self._pumps) < PIPELINES:
            pump = asyncio.create_task(self._pump())
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
        return await outcomes

    async def _pump(self) -> None:
        while taken := self._take():
            try:
                outcomes = await self._connector.send([command for commands, _ in taken for command in commands])
            except Exception as error:  # noqa: BLE001 - raised in each task that asked
                for _, future in taken:
                    if not future.done():
                        future.set_exception(error)
                continue
            for outcome in outcomes:
                if isinstance(outcome, RedisError):
                    self._note(outcome)
            for commands, future in taken:
                mine, outcomes = outcomes[: len(commands)], outcomes[len(commands) :]
                if not future.done():
                    future.set_result(mine)

    def _take(self) -> list[tuple[Sequence[Arguments], asyncio.Future[list[Any]]]]:
        """Take what waits, as much as one pipeline holds; what was cancelled before it was sent is left out."""
        taken: list[tuple[Sequence[Arguments], asyncio.Future[list[Any]]]] = []
        size = 0
        while self._waiting and (not taken or size + len(self._waiting[0][0]) <= COMMANDS_A_PIPELINE):
            commands, outcomes = self._waiting.popleft()
            if not outcomes.done():
                taken.append((commands, outcomes))
                size += len(commands)
        return taken

    async def close(self) -> None:
        """Wait for what is under way, and close the connections."""
        while self._waiting:
            commands, outcomes = self._waiting.popleft()
            if not outcomes.done():
                outcomes.set_result([Unsent(ConnectionError("the connector was closed"))] * len(commands))
        await asyncio.gather(*self._pumps)
        await self._connector.close()
