"""The coalescer of an asyncio client sends single calls of many tasks together.

While one call is under way, others wait, and go in the next pipeline. A client without a call under way sends at once,
in the caller's task. A task of the client's own drives the calls that waited, so that the cancellation of one caller
stops no other call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from urifilter_redis.engine.batch import Batch, Method, OpenCall
from urifilter_redis.engine.combined_call import CombinedCall, PendingCall, error_for
from urifilter_redis.engine.retry import Turn
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import AnswerLost, ServerUnavailable, UriFilterError
from urifilter_redis.flows import items

if TYPE_CHECKING:
    Drive: TypeAlias = Callable[[Flow[Any]], Awaitable[Any]]

T = TypeVar("T")

#: The most single calls that go together. Their pipeline holds the server for some milliseconds.
TOGETHER = 500

#: Seconds between two checks whether calls have ended.
POLL = 0.01


class Coalescer:
    """The single calls of one client in one event loop, in a queue for each command and ``max_age``."""

    def __init__(self, session: Session, drive: Drive) -> None:
        self._session, self._drive = session, drive
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, method: Method[T], batch: Batch) -> Awaitable[T]:
        """Return a method's result for a new batch of one item, awaitable; errors are those of ``items.resolve``."""
        key = batch.command, batch.max_age
        queue = self._queues.get(key) or self._queues.setdefault(key, _Queue(self._session, self._drive, self._start))
        if queue.is_free(batch.open[0].shard):
            return queue.alone(method, batch)
        return queue.together(method, batch)

    async def again(self, batch: Batch, combined: CombinedCall) -> None:
        """Get the answer for an item that was sent in a combined call, or raise the error of that call.

        The call is sent again as a whole, by one of its callers at a time. An item that was never sent leaves the
        combined call without an answer.
        """
        combined.note()  # the answers that have arrived, also while a call of another shard waits for its next slice
        if batch.combined is None:
            return
        call, mine = combined.call_of(batch), asyncio.get_running_loop().create_future()
        landed = combined.flights.setdefault(call, mine)
        if landed is mine:
            self._start(self._repeat(combined, call), lambda: combined.land(mine))
        await self._landing(landed)
        if batch.combined is not None:
            why = "interrupted" if landed.done() else "another event loop asks for the same answer"
            error = combined.errors.get(call) if landed.done() else None
            raise error_for(error or AnswerLost(f"{self._session.where}: {why}; ask again with retry="), batch)

    async def close(self) -> None:
        """Wait until each single call is answered or has failed."""
        while self._tasks or any(queue.is_at_work for queue in self._queues.values()):  # noqa: ASYNC110
            await asyncio.sleep(POLL)

    def _start(self, work: Any, ended: Callable[[], None]) -> None:
        """Run a task of the client's own, and then ``ended``, even if the task was cancelled before its first step."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: ended())

    async def _repeat(self, combined: CombinedCall, call: OpenCall) -> None:
        try:
            await self._drive(items.ask_again(self._session, combined, call))
        except UriFilterError as error:
            combined.errors[call] = error

    async def _landing(self, landed: asyncio.Future[None]) -> None:
        """Wait until a call has ended; for a call of another event loop, ``Timeouts.total`` at most."""
        if landed.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([landed])
            return
        end = monotonic() + self._session.total
        while monotonic() < end and not landed.done():  # noqa: ASYNC110 - of another loop
            await asyncio.sleep(POLL)


class _Queue:
    """The single calls of one command and ``max_age``."""

    def __init__(self, session: Session, drive: Drive, start: Callable[[Any, Callable[[], None]], None]) -> None:
        self._session, self._drive, self._start = session, drive, start
        self._waiting: deque[PendingCall] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.busy = False  # a pipeline is under way
        self.held: set[int] = set()  # shards whose calls are sent again, because an attempt failed

    def is_free(self, shard: int) -> bool:
        """Whether a call to a shard may be sent at once."""
        return not self.busy and shard not in self.held

    @property
    def is_at_work(self) -> bool:
        """Whether a call is under way; if not, none waits either."""
        return self.busy or bool(self.held)

    async def alone(self, method: Method[T], batch: Batch) -> T:
        """Send a call at once, in the task of its caller."""
        pending, turn = self._session.pending, Turn(self._free)
        try:
            try:
                self.busy = True
                pending.begin(batch)
                await self._drive(items.resolve(self._session, batch, turn))
            finally:
                turn.end()  # before the batch leaves
            return pending.answered(batch, method.result(batch))
        except BaseException as error:
            pending.failed(batch, error)
            raise

    async def together(self, method: Method[T], batch: Batch) -> T:
        """Wait until a call is sent with others, and answered.

        The caller waits for the sending for ``Timeouts.total`` at most. If it is cancelled before the sending, its
        item leaves the queue. After the sending the batch is kept as interrupted, unless the item is known to be seen.
        """
        single = PendingCall(batch, asyncio.get_running_loop().create_future())
        try:
            self._waiting.append(single)
            if self._timer is None:
                self._expire_in(self._session.total)
            await single.told
            if single.error is None:
                return method.result(batch)
        except BaseException:
            single.gone = True
            if single.may_be_new:
                self._session.pending.keep(batch)
            raise
        raise single.error

    def _expire_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        """Fail the calls that have waited too long; set the timer for the next one."""
        now, total = monotonic(), self._session.total
        self._timer = None
        text = f"{self._session.where}: not sent, because earlier calls have been under way for {total:g} s"
        for single in [single for single in self._waiting if single.waits]:
            if single.began > now - total:
                self._expire_in(single.began + total - now)
                break
            single.fail(ServerUnavailable(text))

    def _free(self, held: set[int], before: set[int] | None) -> None:
        """Send the waiting calls, if the queue is free, but for those to the shards that a turn holds now."""
        if before is None:
            self.busy = False
        else:
            self.held -= before
        self.held |= held
        if not self.busy and any(single.waits and single.shard not in self.held for single in self._waiting):
            self.busy, turn = True, Turn(self._free)
            # the turn ends after answered callers have asked their next item, so that these go together
            self._start(self._run(turn), turn.end)

    async def _run(self, turn: Turn) -> None:
        """Send the waiting calls in a turn."""
        combined = turn.combined = self._take()
        if combined is None:
            return
        landed = combined.begin(asyncio.get_running_loop().create_future())
        try:
            await self._drive(items.ask_jointly(self._session, combined, turn))
        except BaseException as error:
            combined.give_up(error)
            if not isinstance(error, UriFilterError):
                raise
        finally:
            combined.land(landed)

    def _take(self) -> CombinedCall | None:
        """Take the next calls from the queue, in their order; those of cancelled callers are left out."""
        singles: list[PendingCall] = []
        held: list[PendingCall] = []
        while self._waiting and len(singles) < TOGETHER:
            single = self._waiting.popleft()
            if single.waits:
                (held if single.shard in self.held else singles).append(single)
        self._waiting.extendleft(reversed(held))
        return items.combined_of(self._session, singles) if singles else None
