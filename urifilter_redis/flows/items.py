"""The flows of ``insert``, ``contains``, ``forget`` and ``remove``, which ask some calls of a batch at once."""

from __future__ import annotations

import functools
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from urifilter_redis.bloom.digest import split
from urifilter_redis.engine.batch import FORGET, PART, Batch, call_to_resume, check_question, items_of, with_batch
from urifilter_redis.engine.combined_call import CombinedCall
from urifilter_redis.engine.holdings import CLAIM_COMMANDS
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.errors import AnswerLost, ServerFull, UriFilterError
from urifilter_redis.flows.auto_rotate import auto_rotate, turn_missed
from urifilter_redis.flows.turn import grow
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.call_ids import CallKey
from urifilter_redis.protocol.claims import CLAIMS_A_CALL

__all__ = [
    "TURNING",
    "WINDOW",
    "answer",
    "ask_again",
    "ask_jointly",
    "ask_window",
    "ask_windows",
    "batch_of",
    "combined_of",
    "distrust",
    "give_back",
    "new_pairs",
    "question",
    "resolve",
    "unresolved",
]

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from urifilter_redis.engine.batch import OpenCall
    from urifilter_redis.engine.combined_call import Turn
    from urifilter_redis.engine.holdings import ClaimOptions
    from urifilter_redis.engine.near_cache import InFlight, NearCache
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.calls import Call

    _Asked: TypeAlias = tuple[Sequence[OpenCall], Sequence[Request]]


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
    holdings = None if batch.claim_options is None else batch.claim_options.holdings
    if holdings is not None:
        for call in window:
            holdings.begin(call.shard, call)
    try:
        yield from exchange(session, requests, callers)
    finally:
        if near is not None:
            _learn(near, batch, questions, requests)
        missed = _take_over(session, batch, window, requests)
        if batch.claim_options is not None:
            _note_ends(batch, batch.claim_options, window, requests)
    return (yield from _mend(session, missed)) if missed else {}


def _note_ends(
    batch: Batch, claim_options: ClaimOptions, window: Sequence[OpenCall], requests: Sequence[Request]
) -> None:
    """Let the hand note the ends of the calls of a window, and those that may still run."""
    if claim_options.holdings is not None:
        for call, request in zip(window, requests, strict=True):
            if request.in_doubt and not request.answered:
                claim_options.doubt(batch.command, call.shard, call.packed)
            claim_options.holdings.end(call.shard, call, answered=request.answered, in_doubt=request.in_doubt)


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
    if batch.claim_options is not None:
        config, keys, view = session.config, session.keys.shard(call.shard), session.view(call.shard)
        return batch.claim_options.call(batch.command, config, keys, view, call_id, call.packed, call.positions)
    return session.call_builder(batch.command, call.shard).call(call_id, call.packed, batch.max_age)


def _learn(near: NearCache, batch: Batch, questions: Sequence[InFlight], requests: Sequence[Request]) -> None:
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
            if batch.claim_options is not None:
                batch.claim_options.note(batch.command, call.shard, call.packed, call.positions, request.reply)
            if call.call_id is not None:
                session.ids.release(call.call_id)
        else:
            call.sent = call.sent or request.sent
            missed.append((call, request))
    return missed


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from urifilter_redis.engine.batch import Key, Method, OpenCall
    from urifilter_redis.engine.combined_call import PendingCall, Turn
    from urifilter_redis.engine.holdings import ClaimOptions, Holdings
    from urifilter_redis.engine.near_cache import NearCache
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

    MakesDigests: TypeAlias = Callable[[Sequence[object]], list[bytes]]


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


def unresolved(session: Session, holdings: Holdings | None = None) -> list[AnswerLost]:
    """Return an error for each batch that was interrupted in this process; ``retry=`` takes these errors.

    Args:
        session: the filter's session.
        holdings: the hand whose batches are meant; None: those that are about no claims.
    """
    errors = []
    for batch in session.pending.interrupted():
        ours = batch.client == session.ids.client and holdings is (batch.claim_options and batch.claim_options.holdings)
        if ours and batch.command != "claim":  # whose items are given back
            text = f"{batch.method} was interrupted: call it again with retry= for the answers"
            error = AnswerLost(f"{session.where}: {text}")
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
    call_key: str | None = None,
) -> Batch:
    """Make the batch of a client's method, whose errors are told in the method's terms; see ``batch_of``."""
    named = None if call_key is None else CallKey(call_key, of_items=True)
    near = session.near if method.nearby and max_age is None and named is None else None
    batch = batch_of(session, method.command, objects, retry, max_age, key=key, call_key=named, near=near)
    if retry is not None and not method.nearby:
        distrust(session, batch)
    batch.items, batch.key, batch.term = objects, key, method.term  # of this call, if it goes on with another
    return batch


def distrust(session: Session, batch: Batch) -> None:
    """Open calls for the items of a batch that the near cache has answered; see ``Batch.distrust``."""
    batch.distrust(session.config.shards, functools.partial(_size, session, batch.command))


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
        claim_options: the terms of a batch about claims; None: it is about none.

    Raises:
        BadItem: some items cannot be filtered; the error has the indices of all of them.
        ValueError: ``retry`` is not of this call, or the command or ``max_age`` is not for this filter.
    """
    config = session.config
    check_question(config, command, max_age)
    digests = (digester or session.digester)(objects if key is None else items_of(objects, key))
    if retry is not None:
        return _resume(session, command, digests, retry, max_age or 0)
    part = PART if near is None and claim_options is None and call_key is None else None
    return _batch(session, config, command, objects, digests, max_age or 0, key, call_key, near, claim_options, part)


def resolve(session: Session, batch: Batch, turn: Turn | None = None) -> Flow[Batch]:
    """Ask for the answers that a batch does not have yet; return the batch.

    After an insert the filter is turned if its period is over. If Ctrl-C comes then, the batch has all answers.

    Args:
        session: the filter's session.
        batch: the batch.
        turn: the turn of this batch, if others wait for its end; None: nobody does.

    Raises:
        AnswerLost: some calls may have run and have no answer; the error has the answers that arrived.
        UriFilterError: some calls failed; the error has the answers that arrived.
    """
    forgets = session.near if batch.command in FORGETTING else None
    if forgets is not None:
        forgets.forget(batch.digests)
    try:
        failed: dict[OpenCall, UriFilterError] = {}
        if len(batch.answers) > CALLS_IN_FLIGHT and batch.takes_windows(CALLS_IN_FLIGHT):
            failed = yield from ask_windows(session, batch, CALLS_IN_FLIGHT)
        while batch.open and not failed:
            failed = yield from ask_window(session, batch, batch.open[:CALLS_IN_FLIGHT], turn)
        if failed:
            raise with_batch(_first_of(list(failed.values()), batch), batch)
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


def combined_of(session: Session, singles: Sequence[PendingCall]) -> CombinedCall:
    """Make the combined call of single calls of the same command and ``max_age``."""
    first = singles[0].batch
    batch = _batch(
        session,
        session.config,
        first.command,
        [single.batch.items[0] for single in singles],
        [single.batch.packed for single in singles],
        first.max_age,
    )
    batch.near = first.near  # which does not know them: each of them was looked up when it was asked
    return CombinedCall(session, batch, singles)


def ask_jointly(session: Session, combined: CombinedCall, turn: Turn) -> Flow[None]:
    """Send single calls together, and tell each caller its answer, or the error of its own call.

    After an insert the filter is turned if its period is over; the callers have their answers before.
    """
    failed: dict[OpenCall, UriFilterError] = {}
    while window := [call for call in combined.batch.open if call not in failed]:
        failed |= yield from ask_window(session, combined.batch, window, turn)
        combined.note()
    combined.fail(failed)
    if combined.batch.command == "insert" and session.rotation_timer.at <= monotonic():
        yield from auto_rotate(session)


def ask_again(session: Session, combined: CombinedCall, call: OpenCall) -> Flow[None]:
    """Ask once more for the answers of a part of a combined call, which has the error if it failed again."""
    failed: dict[OpenCall, UriFilterError] = {}
    while call in combined.batch.open and not failed:
        failed = yield from ask_window(session, combined.batch, [call])
    combined.note(call)
    combined.errors.update(failed)


def _batch(  # noqa: PLR0913, PLR0917 - likewise
    session: Session,
    config: Config,
    command: str,
    objects: Sequence[Any],
    digests: list[bytes],
    max_age: int,
    key: Key = None,
    call_key: CallKey | None = None,
    near: NearCache | None = None,
    claim_options: ClaimOptions | None = None,
    part: int | None = None,
) -> Batch:
    """Make a batch; under a call key its calls are cut in the same way however many slices are live."""
    batch = Batch(
        command,
        objects,
        digests,
        shards=config.shards,
        cut=functools.partial(_size if call_key is None else _size_under_a_key, session, command),
        client=session.ids.client,
        max_age=max_age,
        key=key,
        near=near,
        claim_options=claim_options,
        part=part,
    )
    if call_key is not None and batch.writes:
        batch.name_calls(call_key, lambda shard: session.clock_of(shard).now())
    return batch


def _size(session: Session, command: str, shard: int) -> int:
    """Return the most items of one call to a shard."""
    most = calls.items_a_call(session.config, len(session.view(shard).slices))
    return min(most, CLAIMS_A_CALL) if command in CLAIM_COMMANDS else most


def _size_under_a_key(session: Session, command: str, _: int) -> int:
    """Return the most items of one call under a call key: as many however many slices are live."""
    most = calls.items_a_call(session.config, LIVE_UNDER_A_KEY[session.config.retention])
    return min(most, CLAIMS_A_CALL) if command in CLAIM_COMMANDS else most


def _resume(session: Session, command: str, digests: list[bytes], retry: UriFilterError, max_age: int) -> Batch:
    """Return the batch that ``retry`` is about."""
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
