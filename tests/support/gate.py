"""A gate in the asyncio driver: it holds pipelines about items, so that a test decides what happens meanwhile."""

from __future__ import annotations

import asyncio

from support.servers import PATIENCE
from urifilter_redis.engine import driver
from urifilter_redis.engine.steps import Send
from urifilter_redis.protocol.outcomes import Unanswered, Unsent

DIGEST = 16


class Pipeline:
    """One pipeline that waits at the gate.

    Attributes:
        counts: the number of items of each of its commands.
    """

    def __init__(self, step: Send) -> None:
        self.counts = [len(command[-1]) // DIGEST for command in step.commands]
        self._verdict: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lost: set[int] = set()

    def go(self) -> None:
        """Let it be sent and answered."""
        if not self._verdict.done():
            self._verdict.set_result("go")

    def lose(self, *commands: int) -> None:
        """Let it be sent, and lose the replies to some of its commands, or to all."""
        self._lost = set(commands or range(len(self.counts)))
        self._verdict.set_result("lose")

    def refuse(self) -> None:
        """Find no connection for it."""
        self._verdict.set_result("refuse")

    async def perform(self, step: Send, perform, sender):
        decision = await self._verdict
        if decision == "refuse":
            return [Unsent(ConnectionError("no connection"))] * len(step.commands)
        outcomes = list(await perform(step, sender))
        for number in self._lost:
            outcomes[number] = Unanswered(ConnectionError("lost"))
        return outcomes


class Gate:
    """Holds pipelines whose commands end with digests, one or several at a time, while it is shut."""

    def __init__(self, monkeypatch) -> None:
        self._perform, self.shut = driver.perform_step_async, True
        self.passed: list[list[int]] = []
        self._all: list[Pipeline] = []
        self._held: asyncio.Queue[Pipeline] = asyncio.Queue()
        monkeypatch.setattr(driver, "perform_step_async", self._step)

    async def pipeline(self) -> Pipeline:
        """Return the next pipeline at the gate, once there is one."""
        return await asyncio.wait_for(self._held.get(), PATIENCE)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits at the gate."""
        return self._held.empty()

    def open(self) -> None:
        """Let everything pass from now on, also all that waits."""
        self.shut = False
        for held in self._all:
            held.go()

    async def _step(self, step, sender):
        if not isinstance(step, Send) or not isinstance(step.commands[0][-1], bytes):
            return await self._perform(step, sender)
        held = Pipeline(step)
        self.passed.append(held.counts)
        if not self.shut:
            return await self._perform(step, sender)
        self._held.put_nowait(held)
        self._all.append(held)
        return await held.perform(step, self._perform, sender)


async def settle() -> None:
    """Let all tasks run until they wait for the gate or for each other."""
    for _ in range(5):
        await asyncio.sleep(0)
