"""The flows of ``insert``, ``contains``, ``forget`` and ``remove``: the calls of a batch go out in windows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from urifilter_redis.bloom.digest import split
from urifilter_redis.checks import check_text
from urifilter_redis.engine.batch import (
    FORGET,
    PART,
    UNANSWERED,
    Batch,
    Key,
    Method,
    OpenCall,
    call_to_resume,
    check_question,
    items_of,
    with_batch,
)
from urifilter_redis.engine.combined_call import CombinedCall, PendingCall
from urifilter_redis.engine.holdings import CLAIM_COMMANDS, ClaimOptions, Holdings
from urifilter_redis.engine.retry import Request, Turn, exchange
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import AnswerLost, BadItem, ServerFull, UriFilterError
from urifilter_redis.flows.auto_rotate import auto_rotate, turn_missed
from urifilter_redis.flows.turn import grow
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.call_ids import CallKey
from urifilter_redis.protocol.calls import Call
from urifilter_redis.protocol.claims import CLAIMS_A_CALL

if TYPE_CHECKING:
    from urifilter_redis.engine.near_cache import NearCache
    from urifilter_redis.engine.session import Session

    _Window: TypeAlias = tuple[Sequence[OpenCall], Sequence[Request]]

#: The most calls of one window: enough to hide the round trip, few enough for short pipelines.
CALLS_IN_FLIGHT = 8

#: The number of items that ``iter_unique`` inserts before it yields the first of them.
WINDOW = CALLS_IN_FLIGHT * calls.ITEMS_A_CALL

#: The number of live slices that decides the size of calls under a ``CallKey``. It is fixed for each retention, because
#: another process must be able to cut the same items into the same calls. Rolling never has more slices. Growing seldom
#: has more; then a call takes longer, in proportion. The size for a ring does not depend on it.
LIVE_UNDER_A_KEY = {"forever": 1, "growing": 16, "ring": 0, "rolling": 3}

#: The commands after which an item that was new is seen for good.
FINAL = ("insert", "commit")

#: The methods that make items new again.
FORGETTING = ("forget", "remove", "retry_dead_letters")

#: The commands that turn the filter: before them if several periods are over, and after them if one is.
TURNING = ("insert", "claim", "commit")


def question(  # noqa: PLR0913, PLR0917 - what a caller may say
    session: Session,
    method: Method[Any],
    objects: Sequence[Any],
    max_age: int | None = None,
    retry: UriFilterError | None = None,
    key: Key = None,
    call_key: str | None = None,
) -> Batch:
    """Make the batch of a client's method, whose errors have the answers of that method; see ``batch_of``."""
    named = None
    if call_key is not None:
        check_text("call_key", call_key)
        named = CallKey(call_key, of_items=True)
    near = session.near if method.nearby and max_age is None and named is None else None
    batch = batch_of(session, method.command, objects, retry, max_age, key=key, call_key=named, near=near)
    if retry is not None and not method.nearby:
        distrust(session, batch)
    batch.items, batch.key, batch.term = objects, key, method.term  # ``retry`` may be of another method's call
    return batch


def answer(  # noqa: PLR0913 - likewise
    session: Session,
    command: str,
    items: Sequence[Any],
    max_age: int | None = None,
    *,
    key: Key = None,
    call_key: CallKey | None = None,
    claim_options: ClaimOptions | None = None,
) -> Flow[list[int]]:
    """Return the scripts' answers to a command about items, in the items' order; see ``batch_of`` and ``resolve``.

    An interrupted batch is not kept: callers of this flow repeat the request under its ``call_key``.
    """
    batch = batch_of(session, command, items, None, max_age, key=key, call_key=call_key, claim_options=claim_options)
    return cast("list[int]", (yield from resolve(session, batch)).answers)


def batch_of(  # noqa: PLR0913 - likewise
    session: Session,
    command: str,
    objects: Sequence[Any],
    retry: UriFilterError | None = None,
    max_age: int | None = None,
    *,
    key: Key = None,
    call_key: CallKey | None = None,
    digester: Callable[[Sequence[object]], list[bytes]] | None = None,
    near: NearCache | None = None,
    claim_options: ClaimOptions | None = None,
) -> Batch:
    """Make the batch of a command, or return the batch of ``retry``; nothing is sent.

    Args:
        session: the filter's session.
        command: ``insert``, ``contains``, ``forget``, ``remove``, ``claim``, ``commit`` or ``release``.
        objects: any number of items, or of objects that have a ``key``.
        retry: the error of an earlier call with these items; its batch still has the answers that arrived.
        max_age: ring: test only this many of the newest slices; None: test all.
        key: makes an item of each object; None: the objects are the items.
        call_key: makes the call ids of all calls, so that another process may repeat the request.
        digester: makes the digests of items; None: the filter's own.
        near: the near cache that may answer; None: all items are asked about. It does not answer to ``retry``.
        claim_options: of a batch of ``claim``, ``commit`` or ``release``.

    Raises:
        BadItem: some items cannot be filtered, or kept in flight; the error has the indices of all of them.
        ValueError: ``retry`` is not of this call, or the command or ``max_age`` is not for this filter.
    """
    config = session.config
    check_question(config, command, max_age)
    try:
        digests = (digester or session.digester)(objects if key is None else items_of(objects, key))
    except BadItem:
        if claim_options is not None:
            claim_options.keep(range(len(objects)))  # its error has the bad payloads, too
        raise
    if retry is not None:
        return _resume(session, command, digests, retry, max_age or 0)
    batch = Batch(
        command,
        objects,
        digests,
        shards=config.shards,
        cut=functools.partial(_call_size, session, command, call_key is not None),
        sorting=session.sorting,
        client=session.ids.client,
        max_age=max_age or 0,
        key=key,
        near=near,
        claim_options=claim_options,
        part=PART if near is None and claim_options is None and call_key is None else None,
    )
    if call_key is not None and batch.writes and batch.open:
        batch.name_calls(call_key, config.shards, lambda shard: session.clock_of(shard).now())
    return batch


def combined_of(session: Session, singles: Sequence[PendingCall]) -> CombinedCall:
    """Make the combined call of single calls of the same command and ``max_age``."""
    first = singles[0].batch
    batch = Batch(
        first.command,
        [single.batch.items[0] for single in singles],
        [single.batch.packed for single in singles],
        shards=session.config.shards,
        cut=functools.partial(_call_size, session, first.command, False),  # noqa: FBT003 - under no call key
        sorting=session.sorting,
        client=session.ids.client,
        max_age=first.max_age,
    )
    batch.near = first.near  # it does not know the items: each single call has asked it already
    return CombinedCall(session, batch, singles)


def _call_size(session: Session, command: str, keyed: bool, shard: int) -> int:  # noqa: FBT001 - for ``partial``
    """Return the most items of one call to a shard; under a call key it does not depend on the live slices."""
    config = session.config
    most = calls.items_a_call(config, LIVE_UNDER_A_KEY[config.retention] if keyed else len(session.view(shard).slices))
    return min(most, CLAIMS_A_CALL) if command in CLAIM_COMMANDS else most


def _resume(session: Session, command: str, digests: list[bytes], retry: UriFilterError, max_age: int) -> Batch:
    """Return the batch of ``retry``."""
    batch = call_to_resume(retry, Batch, command)
    session.pending.check_free(batch)
    if not batch.is_of(command, digests, max_age):
        raise ValueError(f"retry= takes what {command} raised for these same items, not {retry!r}")
    if batch.client != session.ids.client:
        raise ValueError("retry= takes what this very filter object raised, in this very process")
    batch.near = None  # a repeated call may answer what was so before this process forgot
    if isinstance(batch.combined, CombinedCall):
        batch.combined.batch.near = None
    return batch


def distrust(session: Session, batch: Batch) -> None:
    """Open calls for the items of a batch that the near cache has answered; see ``Batch.distrust``."""
    config, cut = session.config, functools.partial(_call_size, session, batch.command, False)  # noqa: FBT003
    batch.distrust(config.shards, cut, session.sorting)


def new_pairs(batch: Batch) -> list[tuple[Any, bytes]]:
    """Return the items of a batch that are known to be new, each with its digest."""
    answered = zip(batch.items, batch.digests, batch.answers, strict=True)
    return [(item, digest) for item, digest, answer in answered if answer == 0]


def give_back(session: Session, pairs: Sequence[tuple[Any, bytes]]) -> Batch:
    """Make the batch that forgets items by their digests: the caller's objects may have changed meanwhile."""
    batch = batch_of(session, "forget", [each for each, _ in pairs], digester=lambda _: [digest for _, digest in pairs])
    batch.term = FORGET.term
    return batch


def unresolved(session: Session, holdings: Holdings | None = None) -> list[AnswerLost]:
    """Return an error, for ``retry=``, of each batch that was interrupted in this process.

    Args:
        session: the filter's session.
        holdings: of the batches; None: those that are not about claims.
    """
    errors = []
    for batch in session.pending.interrupted():
        of_batch = batch.claim_options and batch.claim_options.holdings
        # the items of an interrupted claim are given back, so it is not repeated
        if batch.client == session.ids.client and of_batch is holdings and batch.command != "claim":
            text = f"{batch.method} was interrupted: call it again with retry= for the answers"
            errors.append(with_batch(AnswerLost(f"{session.where}: {text}"), batch))
    return errors


def resolve(session: Session, batch: Batch, turn: Turn | None = None) -> Flow[Batch]:
    """Ask for the answers that a batch does not have yet; return the batch.

    After an insert the filter is turned if its period is over. If Ctrl-C comes then, the batch has all answers.

    Args:
        session: the filter's session.
        batch: the batch.
        turn: the turn in which the batch is sent; None: no caller waits for its end.

    Raises:
        AnswerLost: some calls may have run and have no answer; the error has the answers that arrived.
        UriFilterError: some calls failed; the error has the answers that arrived.
    """
    near = session.near
    forgets = near if near is not None and batch.method in FORGETTING else None
    if forgets is not None:
        forgets.forget(batch.digests)
    try:
        failed: dict[OpenCall, UriFilterError] = {}
        while batch.first is not None and batch.first in batch.open and not failed:  # alone, also once there is room
            failed = yield from _ask_window(session, batch, [batch.first])
        if not failed and len(batch.answers) > CALLS_IN_FLIGHT and batch.takes_windows(CALLS_IN_FLIGHT):
            failed = yield from _ask_windows(session, batch)
        while batch.open and not failed:
            failed = yield from _ask_window(session, batch, batch.open[:CALLS_IN_FLIGHT], turn)
        if failed:
            error = _first_of(list(failed.values()), batch)
            if isinstance(error, ServerFull) and batch.command in TURNING and session.rotation_timer.at <= monotonic():
                yield from auto_rotate(session)  # a turn that rests may have filled the memory, and frees that now
            raise with_batch(error, batch)
    finally:
        if forgets is not None:
            forgets.forget(batch.digests)
    if batch.command in TURNING and session.rotation_timer.at <= monotonic():
        yield from auto_rotate(session)
    return batch


def _first_of(errors: Sequence[UriFilterError], batch: Batch) -> UriFilterError:
    """Return the error to raise for a batch; if the memory became full in its middle, the error says so."""
    error = next((each for each in errors if isinstance(each, AnswerLost)), errors[0])
    arrived = len(batch.answers) - batch.answers.count(None)
    if arrived and isinstance(error, ServerFull):
        return ServerFull(f"{error}; {arrived:,} of {len(batch.answers):,} items have their answers (error.answers)")
    return error


def ask_jointly(session: Session, combined: CombinedCall, turn: Turn) -> Flow[None]:
    """Send a combined call, and tell each caller its answer, or the error of its own call.

    After an insert the filter is turned if its period is over; the callers have their answers before.
    """
    failed: dict[OpenCall, UriFilterError] = {}
    while window := [call for call in combined.batch.open if call not in failed]:
        failed |= yield from _ask_window(session, combined.batch, window, turn)
        combined.note()
    combined.fail(failed)
    if combined.batch.command == "insert" and session.rotation_timer.at <= monotonic():
        yield from auto_rotate(session)


def ask_again(session: Session, combined: CombinedCall, call: OpenCall) -> Flow[None]:
    """Ask once more for the answers of a part of a combined call, which has the error if it failed again."""
    failed: dict[OpenCall, UriFilterError] = {}
    asked = set(call.positions)
    while (left := [each for each in combined.batch.open if asked.issuperset(each.positions)]) and not failed:
        failed = yield from _ask_window(session, combined.batch, left)
    combined.note(call)
    for error in failed.values():
        combined.errors[call] = error


def _ask_windows(session: Session, batch: Batch) -> Flow[dict[OpenCall, UriFilterError]]:
    """Ask for the answers of all calls of a batch, a window at a time, until one fails; return the error of each call.

    While a window is under way, the answers of the previous one are noted, and the calls of the next one are cut. The
    batch has neither a near cache nor claim options.
    """
    most = CALLS_IN_FLIGHT
    nothing: _Window = (), ()
    previous = latest = nothing  # the windows whose answers may not be noted yet

    def catch_up() -> None:
        nonlocal previous
        _note_answers(session, batch, *previous)
        previous = nothing
        batch.cut(2 * most)

    try:
        while window := batch.cut(len(latest[0]) + most)[len(latest[0]) :][:most]:
            requests = list(map(functools.partial(_request, session, batch), window))
            previous, latest = latest, (window, requests)
            yield from exchange(session, requests, meanwhile=catch_up)
            if previous is not nothing:  # the driver has not done it
                catch_up()
            if not all(request.answered for request in requests):
                missed, latest = _note_answers(session, batch, *latest), nothing
                failed = yield from _handle_missed(session, missed)
                if failed:
                    return failed
    finally:
        for asked in (previous, latest):
            _note_answers(session, batch, *asked)
    return {}


def _ask_window(
    session: Session, batch: Batch, window: Sequence[OpenCall], turn: Turn | None = None
) -> Flow[dict[OpenCall, UriFilterError]]:
    """Ask for the answers of some calls at once; return the error of each call that failed.

    A call for which a growing shard had no room stays open, and the shard's next slice is made.
    """
    near, claim_options = batch.near, batch.claim_options
    requests = list(map(functools.partial(_request, session, batch), window))
    questions = () if near is None else [near.begin(call.digests or split(call.packed)) for call in window]
    if turn is not None:
        turn.send(window, requests, functools.partial(_note_answers, session, batch, window, requests))
    if claim_options is not None:
        for call in window:
            claim_options.begin(call.shard, call, call.packed)
    try:
        yield from exchange(session, requests, turn)
    finally:
        if near is not None:
            # before the answers are noted: the near cache takes in all of them, or none
            least = 0 if batch.command in FINAL else 1
            for question, request in zip(questions, requests, strict=True):
                near.end(question, request.reply[: len(question.digests)] if request.answered else (), least)
        missed = _note_answers(session, batch, window, requests)
        if claim_options is not None:
            for call, request in zip(window, requests, strict=True):
                claim_options.end(call.shard, call, call.packed, answered=request.answered, in_doubt=request.in_doubt)
    return (yield from _handle_missed(session, missed)) if missed else {}


def _note_answers(
    session: Session, batch: Batch, window: Sequence[OpenCall], requests: Sequence[Request]
) -> list[tuple[OpenCall, Request]]:
    """Note the answers of a window, and give back the slots of its answered calls; return the other calls.

    Answers that were noted before are left as they are.
    """
    missed = []
    for call, request in zip(window, requests, strict=True):
        if not request.answered:
            call.sent = call.sent or request.sent
            missed.append((call, request))
        elif call in batch.open:
            claim_options, answers, rest = batch.claim_options, request.reply, None
            if claim_options is not None:
                answers = claim_options.learn(call.positions, answers)
            if UNANSWERED in answers:
                answers, rest = _answered(session, call, answers)
            batch.close(call, answers, rest)
            call.in_doubt = False
            if claim_options is not None:
                claim_options.note(call.shard, call.packed, call.positions, answers)
            if call.call_id is not None:
                session.ids.release(call.call_id)
    return missed


def _answered(session: Session, call: OpenCall, answers: Sequence[int]) -> tuple[list[int | None], OpenCall]:
    """Return the answers of a call that the server's module left half done, and the call for the items without one.

    It gets an id of its own: the record of the first has no answers about them.
    """
    left = [number for number, answer in enumerate(answers) if answer == UNANSWERED]
    digests = split(call.packed)
    positions, packed = [call.positions[each] for each in left], b"".join(digests[each] for each in left)
    rest = OpenCall(call.shard, positions, packed, digests=None if call.digests is None else split(packed))
    if call.call_id is not None and call.call_id.keyed:
        rest.call_id = call.call_id.of_rest(session.clock_of(call.shard).now())
    return [None if answer == UNANSWERED else answer for answer in answers], rest


def _handle_missed(
    session: Session, missed: Sequence[tuple[OpenCall, Request]]
) -> Flow[dict[OpenCall, UriFilterError]]:
    """Turn the filter, or make the next slices of growing shards, where calls wait for it; return the other errors.

    Those calls stay open, and have no error.
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
        turns = batch.command in TURNING and session.turned_by_inserts and session.rotation_timer.turns
        call_id = call.call_id.text(waits=session.wait_replicas > 0, turns=turns)
    if batch.claim_options is not None:
        return batch.claim_options.call(session, call.shard, call_id, call.packed, call.positions)
    return session.call_builder(batch.command, call.shard).call(call_id, call.packed, batch.max_age)
