"""Combined calls: the single calls of many callers in one batch. There is no I/O here, and no task.

Each caller keeps a batch of its own, of one item, so that its answer, its error and ``retry=`` are as if it had asked
alone. Only the calls of scripts, and so the call ids, belong to the combined call.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from urifilter_redis.engine.batch import Batch, OpenCall, with_batch
from urifilter_redis.errors import AnswerLost, ServerUnavailable, UriFilterError

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session


class PendingCall:
    """The single call of one caller.

    Attributes:
        batch: the caller's batch, of one item; it gets the answer.
        told: a future that is done once the caller has its answer or its error, or has been cancelled.
        gone: whether the caller has ended without its answer.
        began: the time by ``monotonic`` at which the caller began to wait.
        error: the error to raise in the caller; None: there is none.
    """

    __slots__ = ("batch", "began", "error", "gone", "told")

    def __init__(self, batch: Batch, told: asyncio.Future[None]) -> None:
        self.batch, self.told, self.began = batch, told, monotonic()
        self.error: UriFilterError | None = None
        self.gone = False

    @property
    def waits(self) -> bool:
        """Whether the caller still waits."""
        return not (self.gone or self.told.done())

    def fail(self, error: UriFilterError) -> None:
        """Tell an error to the caller, if it still waits."""
        if self.waits:
            self.error = error_for(error, self.batch)
            self.told.set_result(None)

    @property
    def shard(self) -> int:
        """The shard of the item; the batch has no answer yet."""
        return self.batch.open[0].shard

    @property
    def may_be_new(self) -> bool:
        """Whether a call that was sent may have inserted the item."""
        batch = self.batch
        return batch.writes and (batch.answers[0] == 0 if not batch.open else batch.combined is not None)


class CombinedCall:
    """Single calls that are sent together.

    A caller that gets an error keeps its link to the combined call, because a late copy of a call may still run:
    ``retry=`` sends the whole call again, under its call id. The link ends if the call was certainly never sent.

    Attributes:
        batch: the batch of all items, in the order in which the callers asked.
        singles: the call of each caller, in the same order.
        flights: the calls of scripts that are under way, each with a future that is done at its end.
        errors: the error of the last attempt of each call of a script that failed.
    """

    def __init__(self, session: Session, batch: Batch, singles: Sequence[PendingCall]) -> None:
        self.batch, self.singles = batch, singles
        self.flights: dict[OpenCall, asyncio.Future[None]] = {}
        self.errors: dict[OpenCall, UriFilterError] = {}
        self._session = session
        for single in singles:
            single.batch.combined = self

    @property
    def began(self) -> float:
        """The time by ``monotonic`` at which the last of the callers began to wait."""
        return self.singles[-1].began

    def call_of(self, batch: Batch) -> OpenCall:
        """Return the open call of a script that has the item of a caller's batch."""
        position = next(n for n, single in enumerate(self.singles) if single.batch is batch)
        return next(call for call in self.batch.open if position in call.positions)

    def begin(self, landed: asyncio.Future[None]) -> asyncio.Future[None]:
        """Count all calls of scripts as under way until ``land``; return the future."""
        self.flights.update(dict.fromkeys(self.batch.open, landed))
        return landed

    def land(self, landed: asyncio.Future[None]) -> None:
        """End the time in which calls of scripts are under way."""
        for call in [call for call, future in list(self.flights.items()) if future is landed]:
            del self.flights[call]
        landed.set_result(None)

    def note(self, call: OpenCall | None = None) -> None:
        """Tell each caller, or each of one call of a script, the answer that has arrived for it."""
        for position in range(len(self.singles)) if call is None else call.positions:
            single, answer = self.singles[position], self.batch.answers[position]
            if answer is not None and single.batch.open:
                self._answer(single, answer)

    def fail(self, failed: Mapping[OpenCall, UriFilterError]) -> None:
        """Tell the callers of calls that failed the error of their own call."""
        self.errors.update(failed)
        for call, error in failed.items():
            sent = call.sent or call.in_doubt
            for position in call.positions:
                self._tell(self.singles[position], error, linked=sent)

    def give_up(self, error: BaseException) -> None:
        """Tell all callers without answers an error that ended the whole; it may have come at any moment."""
        self.note()
        lost, how = (AnswerLost, " with retry= for the answers") if self.batch.writes else (ServerUnavailable, "")
        why = f"{self._session.where}: interrupted ({error!r}); ask again{how}"
        for call in self.batch.open:
            sent = call.sent or call.in_doubt
            ended = error if isinstance(error, UriFilterError) and not sent else lost(why)
            self.fail({call: ended})

    def leave(self, call: OpenCall, before: float, error: UriFilterError) -> bool:
        """Tell an error to the callers of an unsettled call that began at ``before`` or earlier.

        Return whether to go on with the call: its other callers wait, or it may have been sent.
        An item of a call that was never sent leaves the call; also that of a caller that was cancelled. If the call was
        sent, the others go on with it, so that the item may still be inserted.
        """
        over: list[int] = []
        waiting: list[int] = []
        for position in call.positions:
            single = self.singles[position]
            (waiting if single.waits and single.began > before else over).append(position)
        sent = call.sent or call.in_doubt
        if not sent and not waiting:
            return False
        if sent and self.batch.writes and not isinstance(error, AnswerLost):
            error = AnswerLost(f"{error}; others ask on for their items, in the same call")
        for position in over:
            self._tell(self.singles[position], error, linked=sent)
        if not sent and over:
            call.positions = waiting
            call.packed = b"".join([self.singles[position].batch.packed for position in waiting])
        return True

    def _tell(self, single: PendingCall, error: UriFilterError, *, linked: bool) -> None:
        if not linked:
            single.batch.combined = None
        single.fail(error)

    def _answer(self, single: PendingCall, answer: int) -> None:
        batch, pending = single.batch, self._session.pending
        batch.close(batch.open[0], (answer,))
        batch.combined = None
        if single.waits:
            single.told.set_result(None)
        elif batch.writes and answer != 0:
            pending.drop(batch)
        elif batch.writes and single.error is not None and not isinstance(single.error, AnswerLost):
            pending.offer(batch)  # another caller's retry= has inserted it, and this caller's error said otherwise


def error_for(error: UriFilterError, batch: Batch) -> UriFilterError:
    """Return a copy of an error for one caller, with the caller's own batch."""
    made = with_batch(copy.copy(error), batch)
    made.__cause__ = error.__cause__
    return made
