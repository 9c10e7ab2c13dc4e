"""The flows about items: what ``insert``, ``contains`` and ``forget`` do between their steps."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar, cast

from urifilter_redis import calls
from urifilter_redis.batch import Batch
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.exchange import Request, exchange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from urifilter_redis.batch import OpenCall
    from urifilter_redis.calls import Call
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Flow

__all__ = ["WINDOW", "answer", "listed", "selected", "unresolved"]

T = TypeVar("T")

#: Calls in flight at once, each in its slot: enough to hide the round trip, few enough for short pipelines.
CALLS_IN_FLIGHT = 8


#: Items that ``iter_unique`` inserts before it yields the first of them.
WINDOW = CALLS_IN_FLIGHT * calls.ITEMS_A_CALL


def listed(items: Iterable[object]) -> Sequence[object]:
    """Return items as a sequence.

    Raises:
        TypeError: one string was given instead of a list.
    """
    if isinstance(items, str | bytes):
        raise TypeError(f"a list of items is wanted, not one: [{items[:40]!r}]")
    return items if isinstance(items, list | tuple) else list(items)


def selected(items: Sequence[T], answers: Sequence[int | None]) -> list[T]:
    """Return the items that were answered "new"; ``answers`` may be empty."""
    return [item for item, answer in zip(items, answers, strict=False) if answer == 0]


def unresolved(session: Session) -> list[AnswerLost]:
    """Make an error, for ``retry=``, of each batch that was interrupted."""
    errors = []
    for batch in list(session.unresolved):
        error = AnswerLost(f"{session.where}: interrupted; ask again with retry= for the answers")
        error.batch = batch
        errors.append(error)
    return errors


def answer(
    session: Session, command: str, items: Sequence[object], retry: UriFilterError | None = None
) -> Flow[list[int]]:
    """Get the answers of a command for items, in the items' order.

    Args:
        session: of the filter.
        command: ``insert``, ``contains`` or ``forget``.
        items: any number.
        retry: what an earlier call with these items raised; only what has no answer yet is asked.

    Raises:
        BadItem: nothing was sent.
        ValueError: ``retry`` is not of this call.
        UriFilterError: with the answers that did arrive; AnswerLost if others may have been lost.
    """
    batch = _resume(session, command, items, retry)
    while batch.open:
        yield from _window(session, batch, batch.open[:CALLS_IN_FLIGHT])
    return cast("list[int]", batch.answers)


def _resume(session: Session, command: str, items: Sequence[object], retry: UriFilterError | None) -> Batch:
    """Return a new batch, or the one that ``retry`` is about."""
    if retry is None:
        return Batch(command, items, session.digester, session.config.shards, session.ids.client)
    batch = retry.batch
    if batch is None or not batch.is_of(command, items, session.digester):
        raise ValueError(f"retry= takes what {command} raised for these same items, not {retry!r}")
    if batch.client != session.ids.client:
        raise ValueError("retry= takes what this very filter object raised, in this very process")
    if batch in session.unresolved:
        session.unresolved.remove(batch)
    return batch


def _window(session: Session, batch: Batch, window: Sequence[OpenCall]) -> Flow[None]:
    """Send some calls of a batch; take over what was answered; raise if anything was not."""
    requests = [_request(session, batch.command, call) for call in window]
    try:
        yield from exchange(session, requests)
    except BaseException:  # cancelled, Ctrl-C: what is on its way may run
        for request in requests:
            if not request.settled:
                request.in_doubt = request.call_id is not None
        _take_over(session, batch, window, requests)
        if batch.command != "contains":
            session.unresolved.append(batch)
        raise
    _take_over(session, batch, window, requests)
    errors = [request.error for request in requests if request.error is not None]
    if errors:
        error = next((e for e in errors if isinstance(e, AnswerLost)), errors[0])
        error.batch = batch
        raise error


def _request(session: Session, command: str, call: OpenCall) -> Request:
    build = functools.partial(_call, session, command, call)
    if command == "contains":
        return Request(build, call.shard)
    return Request(build, call.shard, call.call_id or session.ids.draw(), call.in_doubt)


def _call(session: Session, command: str, call: OpenCall, request: Request) -> Call:
    call_id = calls.NO_CALL_ID if request.call_id is None else str(request.call_id)
    keys, view = session.keys.shard(call.shard), session.view(call.shard)
    return calls.items(command, session.config, keys, view, call_id, call.packed)


def _take_over(session: Session, batch: Batch, window: Sequence[OpenCall], requests: Sequence[Request]) -> None:
    """Note the answers; the slot of an answered call is free, any other stays with its call."""
    for call, request in zip(window, requests, strict=True):
        call.call_id, call.in_doubt = request.call_id, request.in_doubt
        if request.answered:
            batch.close(call, request.reply)
            if request.call_id is not None:
                session.ids.release(request.call_id)
