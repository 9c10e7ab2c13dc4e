"""Windows: some calls of a batch that are asked at once, in one exchange."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from urifilter_redis.bloom.digest import split
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.flows.timely import turn_missed
from urifilter_redis.flows.turn import grow
from urifilter_redis.protocol import calls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from urifilter_redis.engine.batch import Batch, OpenCall
    from urifilter_redis.engine.claim_options import Terms
    from urifilter_redis.engine.combined_call import Turn
    from urifilter_redis.engine.near_cache import NearCache, Question
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.calls import Call

    _Asked: TypeAlias = tuple[Sequence[OpenCall], Sequence[Request]]

__all__ = ["TURNING", "ask_window", "ask_windows"]

#: The commands after which an item that was new is seen for good.
FINAL = ("insert", "commit")

#: The commands after which a client looks whether the filter's period is over, and before which it turns the filter if
#: more than one is.
TURNING = ("insert", "claim", "commit")


def ask_windows(session: Session, batch: Batch, most: int) -> Flow[dict[OpenCall, UriFilterError]]:
    """Ask for the answers of all calls of a batch, at most ``most`` at once; end with the first window that has failed.

    Return the error of each call that failed. While a window is under way, the answers of the one before are noted, and
    the calls of the next are cut. The batch has neither a near cache nor terms.
    """
    nothing: _Asked = (), ()
    before = latest = nothing  # the windows whose answers may not be noted yet

    def catch_up() -> None:
        nonlocal before
        _take_over(session, batch, *before)
        before = nothing
        batch.cut(2 * most)

    try:
        while window := batch.cut(len(latest[0]) + most)[len(latest[0]) :][:most]:
            requests = list(map(functools.partial(_request, session, batch), window))
            before, latest = latest, (window, requests)
            yield from exchange(session, requests, meanwhile=catch_up)
            if before is not nothing:  # the driver has not done it
                catch_up()
            if not all(request.answered for request in requests):
                missed, latest = _take_over(session, batch, *latest), nothing
                failed = yield from _mend(session, missed)
                if failed:
                    return failed
    finally:
        for asked in (before, latest):
            _take_over(session, batch, *asked)
    return {}


def ask_window(
    session: Session, batch: Batch, window: Sequence[OpenCall], turn: Turn | None = None
) -> Flow[dict[OpenCall, UriFilterError]]:
    """Ask for the answers of some calls at once; return the error of each call that failed.

    A call for which a growing shard had no room stays open, and the shard's next slice is made.
    """
    near = batch.near
    requests = list(map(functools.partial(_request, session, batch), window))
    questions = () if near is None else [near.begin(call.digests or split(call.packed)) for call in window]
    callers = None if turn is None else _Callers(session, batch, window, requests, turn)
    hand = None if batch.terms is None else batch.terms.hand
    if hand is not None:
        for call in window:
            hand.begin(call.shard, call)
    try:
        yield from exchange(session, requests, callers)
    finally:
        if near is not None:
            _learn(near, batch, questions, requests)
        missed = _take_over(session, batch, window, requests)
        if batch.terms is not None:
            _note_ends(batch, batch.terms, window, requests)
    return (yield from _mend(session, missed)) if missed else {}


def _note_ends(batch: Batch, terms: Terms, window: Sequence[OpenCall], requests: Sequence[Request]) -> None:
    """Let the hand note the ends of the calls of a window, and those that may still run."""
    if terms.hand is not None:
        for call, request in zip(window, requests, strict=True):
            if request.in_doubt and not request.answered:
                terms.doubt(batch.command, call.shard, call.packed)
            terms.hand.end(call.shard, call, answered=request.answered, in_doubt=request.in_doubt)


class _Callers:
    """The callers of one window, in the terms of ``exchange``."""

    __slots__ = ("_asked", "_turn")

    def __init__(
        self, session: Session, batch: Batch, window: Sequence[OpenCall], requests: Sequence[Request], turn: Turn
    ) -> None:
        self._asked, self._turn = (session, batch, window, requests), turn

    @property
    def began(self) -> float:
        return self._turn.began

    def leave(self, request: Request, before: float, error: UriFilterError) -> None:
        _, _, window, requests = self._asked
        call = window[requests.index(request)]
        call.sent = call.sent or request.sent
        if not self._turn.leave(call, before, error):
            request.error = error

    def repeat(self, waiting: Sequence[Request]) -> None:
        _take_over(*self._asked)
        self._turn.repeat({request.shard for request in waiting if request.shard is not None})


def _mend(session: Session, missed: Sequence[tuple[OpenCall, Request]]) -> Flow[dict[OpenCall, UriFilterError]]:
    """Make the next slices of growing shards that have no room for a call; return the error of each call that failed.

    A call whose shard has a next slice now has no error, and is still open; so is one before which the filter turns.
    """
    if any(request.due for _, request in missed):
        yield from turn_missed(session)
    failed = {call: request.error for call, request in missed if request.error is not None}
    full = [call for call, request in missed if request.full]
    for shard, items in {call.shard: len(call.positions) for call in full}.items():
        try:
            yield from grow(session, shard, items)
        except UriFilterError as error:
            for call in (each for each in full if each.shard == shard):
                doubt = f"a reply was lost, and then: {error}"
                failed[call] = AnswerLost(doubt) if call.in_doubt else error
    return failed


def _request(session: Session, batch: Batch, call: OpenCall) -> Request:
    build = functools.partial(_call, session, batch, call)
    if not batch.writes:
        return Request(build, call.shard, replica=session.routes.reads_replicas, reads=True)
    if call.call_id is None:
        call.call_id = session.ids.draw(None if session.routes.alone else session.clock_of(call.shard))
    return Request(build, call.shard, call)


def _call(session: Session, batch: Batch, call: OpenCall, _: Request) -> Call:
    call_id = calls.NO_CALL_ID
    if call.call_id is not None:
        turns = batch.command in TURNING and session.turns
        call_id = call.call_id.text(waits=session.wait_replicas > 0, turns=turns)
    if batch.terms is not None:
        config, keys, view = session.config, session.keys.shard(call.shard), session.view(call.shard)
        return batch.terms.call(batch.command, config, keys, view, call_id, call.packed, call.positions)
    return session.asking(batch.command, call.shard).call(call_id, call.packed, batch.max_age)


def _learn(near: NearCache, batch: Batch, questions: Sequence[Question], requests: Sequence[Request]) -> None:
    """Let the near cache take in the answers of a window, before they are noted: then all of them are, or none."""
    least = 0 if batch.command in FINAL else 1
    for question, request in zip(questions, requests, strict=True):
        near.end(question, request.reply if request.answered else (), least)


def _take_over(
    session: Session, batch: Batch, window: Sequence[OpenCall], requests: Sequence[Request]
) -> list[tuple[OpenCall, Request]]:
    """Note the answers of a window, and give back the slots of its answered calls; return the other calls.

    Answers that were noted before are left as they are.
    """
    missed = []
    for call, request in zip(window, requests, strict=True):
        if request.answered and call not in batch.open:
            continue
        if request.answered:
            batch.close(call, request.reply)
            call.in_doubt = False
            if batch.terms is not None:
                batch.terms.note(batch.command, call.shard, call.packed, call.positions, request.reply)
            if call.call_id is not None:
                session.ids.release(call.call_id)
        else:
            call.sent = call.sent or request.sent
            missed.append((call, request))
    return missed
