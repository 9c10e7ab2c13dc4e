"""The flows of ``insert``, ``contains``, ``forget`` and ``remove``."""

from __future__ import annotations

import functools
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from urifilter_redis.bloom.digest import split
from urifilter_redis.engine.batch import Batch, call_to_resume, check_question
from urifilter_redis.engine.given import items_of
from urifilter_redis.engine.methods import FORGET, with_batch
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.flows.timely import attend
from urifilter_redis.flows.turn import grow
from urifilter_redis.protocol import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from urifilter_redis.engine.batch import OpenCall
    from urifilter_redis.engine.given import Key
    from urifilter_redis.engine.methods import Method
    from urifilter_redis.engine.near_cache import NearCache, Question
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.call_ids import CallKey
    from urifilter_redis.protocol.calls import Call

    MakesDigests: TypeAlias = Callable[[Sequence[object]], list[bytes]]

__all__ = [
    "WINDOW",
    "answer",
    "batch_of",
    "give_back",
    "new_pairs",
    "question",
    "resolve",
    "unresolved",
]

#: The number of live slices that decides the size of calls under a ``CallKey``. It is fixed for each retention, because
#: another process must be able to cut the same items into the same calls. Rolling never has more slices. Growing seldom
#: has more; then a call takes longer, in proportion. The size for a ring does not depend on it.
LIVE_UNDER_A_KEY = {"forever": 1, "growing": 16, "ring": 0, "rolling": 3}

#: The commands that make items new again.
FORGETTING = ("forget", "remove")

#: The most calls of one window: enough to hide the round trip, few enough for short pipelines.
CALLS_IN_FLIGHT = 8


#: Items that ``iter_unique`` inserts before it yields the first of them.
WINDOW = CALLS_IN_FLIGHT * calls.ITEMS_A_CALL


def unresolved(session: Session) -> list[AnswerLost]:
    """Return an error for each batch that was interrupted in this process; ``retry=`` takes these errors."""
    errors = []
    for batch in session.pending.interrupted():
        if batch.client == session.ids.client:
            error = AnswerLost(f"{session.where}: interrupted; ask again with retry= for the answers")
            errors.append(with_batch(error, batch))
    return errors


def answer(
    session: Session,
    command: str,
    items: Sequence[object],
    max_age: int | None = None,
    *,
    call_key: CallKey | None = None,
) -> Flow[list[int]]:
    """Return the scripts' answers to a command about items, in the items' order; see ``batch_of`` and ``resolve``.

    An interrupted batch is not kept: callers of this flow repeat the request under its ``call_key``.
    """
    batch = yield from resolve(session, batch_of(session, command, items, max_age=max_age, call_key=call_key))
    return cast("list[int]", batch.answers)


def new_pairs(batch: Batch) -> list[tuple[Any, bytes]]:
    """Return the items of a batch that are known to be new, each with its digest."""
    return [
        (item, digest)
        for item, digest, answer in zip(batch.items, batch.digests, batch.answers, strict=True)
        if answer == 0
    ]


def give_back(session: Session, pairs: Sequence[tuple[Any, bytes]]) -> Batch:
    """Make the batch that forgets items by their digests: the caller's objects may have changed meanwhile."""
    batch = batch_of(session, "forget", [each for each, _ in pairs], digester=lambda _: [digest for _, digest in pairs])
    batch.term = FORGET.term
    return batch


def question(  # noqa: PLR0913, PLR0917 - what a caller may say
    session: Session,
    method: Method[Any],
    objects: Sequence[Any],
    max_age: int | None = None,
    retry: UriFilterError | None = None,
    key: Key = None,
) -> Batch:
    """Make the batch of a client's method, whose errors are told in the method's terms; see ``batch_of``."""
    near = session.near if method.nearby and max_age is None else None
    batch = batch_of(session, method.command, objects, retry, max_age, key=key, near=near)
    if retry is not None and not method.nearby:
        batch.distrust(session.config.shards, functools.partial(_size, session))
    batch.items, batch.key, batch.term = objects, key, method.term  # of this call, if it goes on with another
    return batch


def batch_of(  # noqa: PLR0913 - likewise
    session: Session,
    command: str,
    objects: Sequence[Any],
    retry: UriFilterError | None = None,
    max_age: int | None = None,
    *,
    key: Key = None,
    call_key: CallKey | None = None,
    digester: MakesDigests | None = None,
    near: NearCache | None = None,
) -> Batch:
    """Make the batch of a command, or return the batch of ``retry``; nothing is sent.

    Args:
        session: the filter's session.
        command: ``insert``, ``contains``, ``forget`` or ``remove``.
        objects: any number of items, or of objects that have a ``key``.
        retry: the error of an earlier call with these items; its batch still has the answers that arrived.
        max_age: ring: test only this many of the newest slices; None: test all.
        key: makes an item of each object; None: the objects are the items.
        call_key: makes the call ids of all calls, so that another process may repeat the request.
        digester: makes the digests of items; None: the filter's own.
        near: the near cache that may answer; None: all items are asked about. It does not answer to ``retry``.

    Raises:
        BadItem: some items cannot be filtered; the error has the indices of all of them.
        ValueError: ``retry`` is not of this call, or the command or ``max_age`` is not for this filter.
    """
    check_question(session.config, command, max_age)
    digester = digester or session.digester
    if retry is not None:
        return _resume(session, command, digester(items_of(objects, key)), retry, max_age or 0)
    digests = digester(items_of(objects, key))
    cut = functools.partial(_size if call_key is None else _size_under_a_key, session)
    config = session.config
    batch = Batch(
        command,
        objects,
        digests,
        shards=config.shards,
        cut=cut,
        client=session.ids.client,
        max_age=max_age or 0,
        key=key,
        near=near,
    )
    if call_key is not None and batch.writes:
        batch.name_calls(call_key, session.ids.clock.now())
    return batch


def resolve(session: Session, batch: Batch) -> Flow[Batch]:
    """Ask for the answers that a batch does not have yet; return the batch.

    After an insert the filter is turned if its period is over. If Ctrl-C comes then, the batch has all answers.

    Raises:
        AnswerLost: some calls may have run and have no answer; the error has the answers that arrived.
        UriFilterError: some calls failed; the error has the answers that arrived.
    """
    near = batch.near
    forgets = session.near if batch.command in FORGETTING else None
    if forgets is not None:
        forgets.forget(batch.digests)
    try:
        while batch.open:
            window = batch.open[:CALLS_IN_FLIGHT]
            requests = [_request(session, batch, call) for call in window]
            questions = () if near is None else [near.begin(call.digests or split(call.packed)) for call in window]
            try:
                yield from exchange(session, requests)
            finally:
                if near is not None:
                    _learn(near, batch, questions, requests)
                missed = _take_over(session, batch, window, requests)
            if missed:
                yield from _mend(session, batch, missed)
    finally:
        if forgets is not None:
            forgets.forget(batch.digests)
    if batch.command == "insert" and session.timekeeper.at <= monotonic():
        yield from attend(session)
    return batch


def _size(session: Session, shard: int) -> int:
    """Return the most items of one call to a shard."""
    return calls.items_a_call(session.config, len(session.view(shard).slices))


def _size_under_a_key(session: Session, _: int) -> int:
    """Return the most items of one call under a call key: as many however many slices are live."""
    return calls.items_a_call(session.config, LIVE_UNDER_A_KEY[session.config.retention])


def _resume(session: Session, command: str, digests: list[bytes], retry: UriFilterError, max_age: int) -> Batch:
    """Return the batch that ``retry`` is about."""
    batch = call_to_resume(retry, Batch, command)
    session.pending.check_free(batch)
    if not batch.is_of(command, digests, max_age):
        raise ValueError(f"retry= takes what {command} raised for these same items, not {retry!r}")
    if batch.client != session.ids.client:
        raise ValueError("retry= takes what this very filter object raised, in this very process")
    batch.near = None  # a repeated call may answer what was so before this process forgot
    return batch


def _mend(session: Session, batch: Batch, missed: Sequence[tuple[OpenCall, Request]]) -> Flow[None]:
    """Raise the error of a call that failed.

    If a growing shard has no room for a call, the call stays open and the shard's next slice is made.
    """
    errors = [request.error for _, request in missed if request.error is not None]
    full = {call.shard: call for call, request in missed if request.full}
    try:
        for shard, call in full.items():
            yield from grow(session, shard, len(call.positions))
    except UriFilterError as failed:
        doubtful = any(call.in_doubt for call in full.values())
        errors.append(AnswerLost(f"a reply was lost, and then: {failed}") if doubtful else failed)
    if errors:
        error = next((e for e in errors if isinstance(e, AnswerLost)), errors[0])
        raise with_batch(error, batch)


def _request(session: Session, batch: Batch, call: OpenCall) -> Request:
    build = functools.partial(_call, session, batch, call)
    if not batch.writes:
        return Request(build, call.shard)
    if call.call_id is None:
        call.call_id = session.ids.draw()
    return Request(build, call.shard, call)


def _call(session: Session, batch: Batch, call: OpenCall, _: Request) -> Call:
    call_id = calls.NO_CALL_ID if call.call_id is None else str(call.call_id)
    return session.asking(batch.command, call.shard).call(call_id, call.packed, batch.max_age)


def _learn(near: NearCache, batch: Batch, questions: Sequence[Question], requests: Sequence[Request]) -> None:
    """Let the near cache take in the answers of a window, before they are noted: then all of them are, or none."""
    least = 0 if batch.writes else 1
    for question, request in zip(questions, requests, strict=True):
        near.end(question, request.reply if request.answered else (), least)


def _take_over(
    session: Session, batch: Batch, window: Sequence[OpenCall], requests: Sequence[Request]
) -> list[tuple[OpenCall, Request]]:
    """Note the answers of a window, and give back the slots of its answered calls; return the other calls."""
    missed = []
    for call, request in zip(window, requests, strict=True):
        if request.answered:
            batch.close(call, request.reply)
            if call.call_id is not None:
                session.ids.release(call.call_id)
        else:
            missed.append((call, request))
    return missed
