"""An asyncio client: tasks whose single calls are coalesced, and some of which are cancelled."""

from __future__ import annotations

import asyncio
import collections
import time
from typing import Any

from bench.hostile.actors.part import Part, answers_of, gives_up, uid_of
from bench.hostile.filters import number_of, uri
from urifilter_redis import AsyncUriFilter, UriFilterError

TASKS = 6

#: The filters that this client asks.
ASKED = ("pages", "days", "ring")

#: The shares of calls that are cancelled, and that are single; and the longest time until a cancellation, s.
CANCELLED, SINGLE, SOON = 0.1, 0.8, 0.01


class Client:
    """Filters by their names, opened again if they were lost, and the calls that were cancelled."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._open: dict[str, AsyncUriFilter] = {}
        self._left: collections.defaultdict[tuple[AsyncUriFilter, int], list[str]] = collections.defaultdict(list)
        self._all: list[AsyncUriFilter] = []  # also those that were made anew since

    async def get(self, name: str) -> AsyncUriFilter:
        """Return the filter; make it, or restore it, until that succeeds."""
        while name not in self._open:
            try:
                made = await AsyncUriFilter.create(name, **self._part.where(name))
            except UriFilterError:
                if not self._part.goes_on():
                    raise
                await asyncio.sleep(0.3)
                continue
            if name in self._open:  # another task was faster
                await made.close()
            else:
                self._take(name, made)
        return self._open[name]

    async def mend(self, name: str) -> None:
        """Restore the filter from its archive, or make it anew, if it is lost; open calls stay with the old one."""
        try:
            made = await AsyncUriFilter.create(name, **self._part.where(name))
        except UriFilterError:
            return
        if made.config.uid == self._open[name].config.uid:
            await made.close()
        else:
            self._take(name, made)

    async def ask(self, name: str, numbers: list[int]) -> None:
        """Insert items, and say so before and after."""
        news = await self.get(name)
        call = self._part.log.ask("insert", name, uid_of(name, news), numbers)
        self._part.log.told(call, await self._certain(news, name, numbers, None))

    async def ask_and_cancel(self, name: str, number: int) -> None:
        """Insert an item in a task that is cancelled soon; what it may have inserted is in ``unresolved`` later."""
        news = await self.get(name)
        call = self._part.log.ask("insert", name, uid_of(name, news), [number])
        task = asyncio.create_task(news.insert(uri(number)))
        await asyncio.sleep(self._part.dice.uniform(0, SOON))
        task.cancel()
        try:
            answers = [int(not await task)]
        except asyncio.CancelledError:
            self._left[news, number].append(call)
            return
        except UriFilterError as failed:
            answers = await self._certain(news, name, [number], failed)
        self._part.log.told(call, answers)

    async def resolve(self) -> None:
        """Ask again for what was cancelled and may have been inserted."""
        for news in self._all:
            for error in news.unresolved:
                number = number_of(str((error.items or [])[0]))
                if not self._left[news, number]:  # its answer is lost for good, and that was said
                    continue
                answers = await self._certain(news, news.name, [number], error)
                # of several calls about an item the first began before the one that was meant
                self._part.log.told(self._left[news, number].pop(0), answers)

    def drop(self) -> None:
        """Say that the other cancelled calls have inserted nothing: the filters do not name them as unresolved."""
        for call in (each for left in self._left.values() for each in left):
            self._part.log.say("dropped", call=call)

    def _take(self, name: str, made: AsyncUriFilter) -> None:
        self._open[name] = made
        self._all.append(made)

    async def _certain(
        self, news: AsyncUriFilter, name: str, numbers: list[int], error: UriFilterError | None
    ) -> list[Any]:
        """Ask until all answers are there, for a long time, or until the filter was made anew."""
        items, began = [uri(each) for each in numbers], time.monotonic()
        while True:
            try:
                if len(items) == 1:
                    return [int(not await news.insert(items[0], retry=error))]
                return await news.insert_ages(items, retry=error)
            except UriFilterError as failed:
                error = failed if failed.answers is not None else error
                await self.mend(name)
                if gives_up(began, failed) or self._open[name] is not news:
                    read = (lambda new: int(not new)) if len(items) == 1 else int
                    return [None] * len(items) if error is None else answers_of(error, len(items), read)
                await asyncio.sleep(0.1)


async def _work(part: Part, client: Client) -> None:
    while part.goes_on():
        name, kind = part.dice.choice(ASKED), part.dice.random()
        if kind < CANCELLED:
            await client.ask_and_cancel(name, *part.some(1))
        else:
            await client.ask(name, part.some(1 if kind < SINGLE else 20))
        await asyncio.sleep(part.rest() * TASKS)


async def _resolve(part: Part, client: Client) -> None:
    while part.goes_on():
        await asyncio.sleep(0.5)
        await client.resolve()


async def _all(part: Part) -> None:
    client = Client(part)
    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(_work(part, client))
        group.create_task(_resolve(part, client))
    await asyncio.sleep(5)  # the calls of those that were cancelled have come to their end
    await client.resolve()
    client.drop()


def run(part: Part) -> None:
    """Run all tasks in one loop."""
    asyncio.run(_all(part))
