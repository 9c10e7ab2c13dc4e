"""The flows that rotate ring and rolling filters when a period is over.

A process may die at any step of a rotation. So each step is a script, fenced by epoch, phase and token. ``left_of``
tells the remaining steps from ``meta`` alone, so that the next process goes on where the last one stopped.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import TIMED
from urifilter_redis.checks import check_flag, check_whole
from urifilter_redis.engine.queries import ask, ask_each, server_time
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.engine.steps import REST, Flow, Pause
from urifilter_redis.errors import ArchiveError, RotationConflict, ServerFull, ServerUnavailable, UriFilterError
from urifilter_redis.flows.history import archive_closed, build_next, finish_next
from urifilter_redis.flows.turn import Due, Left, Turn, left_of, next_due, read_states, shard_0_last, top_epoch
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.storage.registry import require_archive
from urifilter_redis.storage.slices import archive_of

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

log = logging.getLogger("urifilter_redis")

#: The most conflicts in a row with other processes; with more of them something must be wrong.
CONFLICTS = 100


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of a rotation.

    Attributes:
        epoch: the number of rotations of the filter so far; shards may be behind.
        shards: the number of shards that this process has turned, or whose unfinished turn it has finished.
        problems: the slices of the archive that are missing or corrupt. Their items expire late, never early.

    Example:
        >>> daily.rotate().epoch
        1
    """

    epoch: int
    shards: int = 0
    problems: tuple[str, ...] = ()


def rotate(session: Session, expected_epoch: int | None = None, *, dry_run: bool = False) -> Flow[Rotation]:
    """Turn every shard once, after finishing the unfinished turns.

    No shard turns twice in one rotation. A shard that is behind stays behind until its next turn is due. Its items
    expire late, never early. If the archive has stopped the last rotation half-way, this goes on with that rotation.

    With ``expected_epoch`` only the shards turn that are not past that epoch. Without it all shards turn, even if other
    processes rotate meanwhile. With ``dry_run`` nothing changes, and the result has the epoch that would be reached.

    Raises:
        RotationConflict: the filter is not, or not any more, in ``expected_epoch``.
        ArchiveMissing: the filter needs its archive, which is not there or was not named.
        ArchiveError: the archive failed; the error says which shard has turned, if any has.
        UriFilterError: the retention does not rotate by time.
    """
    check_flag("dry_run", dry_run)
    check_whole("expected_epoch", expected_epoch)
    _check_timed(session)
    states = yield from read_states(session)
    top = top_epoch(states)
    halted = any(state.halted and state.epoch == top and state.phase == "rotating" for state in states)
    resumes = halted and expected_epoch is None
    if resumes:
        expected_epoch = top - 1
    token = secrets.token_hex(8)
    planned: dict[int, int | None] = dict.fromkeys(shard_0_last(range(len(states))))
    if expected_epoch is not None:
        token, planned = _of_this_rotation(session, states, expected_epoch)
    if dry_run:
        return Rotation(1 + (top if expected_epoch is None else expected_epoch))
    if expected_epoch is None or top == expected_epoch + 1:
        done = yield from _turn_all(session, planned, token)
    else:
        done = yield from _begin(session, expected_epoch, planned, token)
    if not done.shards and resumes:  # another process has gone on with it
        return (yield from rotate(session))
    if not done.shards:
        raise RotationConflict(f"{session.where}: another process has just rotated it to epoch {done.epoch}")
    return done


def due(session: Session) -> Flow[int | None]:
    """Return the epoch that a due rotation would reach; None if none is due.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    states, now = yield from _read_states_and_time(session)
    planned = Due.of(session.config.period or "", states, now, 1000 * time.time()).planned
    return max(planned.values()) + 1 if planned else None


def rotate_due(session: Session, *, build: bool = True) -> Flow[Rotation | None]:
    """Rotate once if a rotation is due; return None if none is due. Epochs of periods that were missed are passed over.

    A shard whose own server does not find its period over yet is left alone. Without ``build`` the turns of a rolling
    filter are not finished; other callers do that.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    states, now = yield from _read_states_and_time(session)
    ahead = [keys for keys, state in zip(session.keys.all, states, strict=True) if state.opened > now]
    yield from ask_each(session, [calls.reopen(session.config.uid, keys) for keys in ahead])
    due = Due.of(session.config.period or "", states, now, 1000 * time.time())
    done = yield from _turn_all(session, due.planned, secrets.token_hex(8), due, build=build)
    if done.shards and not due.missed:
        yield from doubt(session)
    return done if done.shards else None  # another process may have come first


def doubt(session: Session) -> Flow[None]:
    """Note that the server's times cannot be trusted: until its next turn no shard passes over periods."""
    yield from ask_each(session, [calls.reopen(session.config.uid, keys, doubt=True) for keys in session.keys.all])


def epoch(session: Session) -> Flow[int]:
    """Return the number of rotations (growing: the number of slices that its largest shard has added)."""
    return top_epoch((yield from read_states(session)))


def next_rotation(session: Session) -> Flow[float]:
    """Return the server time at which the next rotation is due, seconds since 1970.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    states, now = yield from _read_states_and_time(session)
    return next_due(session.config.period or "", states, now)


def finish_missed(session: Session) -> Flow[None]:
    """Finish the turns that were left before periods were missed: until then their shards cannot turn again."""
    states, now = yield from _read_states_and_time(session)
    due = Due.of(session.config.period or "", states, now, 1000 * time.time())
    for shard in due.planned:
        if left_of(states[shard]) is not Left.NONE and due.by(states[shard], states[shard].epoch + 1) > 1:
            yield from finish_rotation(session, shard)


def finish_rotation(session: Session, shard: int) -> Flow[tuple[bool, list[str]]]:
    """Finish a shard's turn; return whether anything was left to do, and the problems of the archive."""
    did, conflicts = False, 0
    problems: list[str] = []
    while True:
        (state,) = yield from read_states(session, [shard])
        left = left_of(state)
        try:
            if left is Left.NONE:
                return did, problems
            if left is Left.ARCHIVE:
                yield from archive_closed(session, shard, state)
            elif left is Left.BUILD:
                problems += yield from build_next(session, shard, state)
            else:
                if state.late and not problems:  # another process found the problems, or a reply about them was lost
                    problems.append(f"{session.where}: shard {shard}: slices were missing while its history was built")
                yield from finish_next(session, shard, state)
            did, conflicts = True, 0
            yield REST
        except RotationConflict:
            conflicts += 1
            if conflicts > CONFLICTS:
                raise


def _read_states_and_time(session: Session) -> Flow[tuple[list[ShardState], int]]:
    """Return the states of the shards, and the server's time after they were read, ms."""
    _check_timed(session)
    states = yield from read_states(session)
    return states, (yield from server_time(session))


def _check_timed(session: Session) -> None:
    retention = session.config.retention
    if retention not in TIMED:
        why = "it grows when it is full" if retention == "growing" else "nothing in it expires"
        raise UriFilterError(f"{session.where}: retention {retention} does not rotate: {why}")
    if session.config.has_backend:
        require_archive(session)  # opening a filter with its archive has checked that Redis is not older than that


def _of_this_rotation(
    session: Session, states: Sequence[ShardState], expected: int
) -> tuple[str, dict[int, int | None]]:
    """Return the token of the rotation from epoch ``expected``, and the shards that still have to turn in it.

    Each shard comes with the last epoch that it may leave. A shard with the highest epoch turns first. From then on its
    token marks each shard that has turned in this rotation. Shard 0 turns last, unless it alone has the highest epoch,
    because a failover lost the turns of the others.
    """
    top = top_epoch(states)
    begun = top == expected + 1
    token = next(state.token for state in states if state.epoch == top) if begun else secrets.token_hex(8)
    left = [
        shard
        for shard, state in enumerate(states)
        if state.phase == "rotating" or (state.token != token and state.epoch <= expected)
    ]
    if top not in {expected, expected + 1} or not left:
        text = f"it is in epoch {top} and not in {expected}"
        why = "another process has rotated it" if top > expected else "it was not rotated so often yet"
        raise RotationConflict(f"{session.where}: {text}: {why}")
    left = shard_0_last(sorted(left, key=lambda shard: -states[shard].epoch))
    if not begun and states[left[0]].epoch < top:
        left.insert(0, left.pop())
    # A shard with the rotation's token has left its epoch already.
    return token, {shard: min(states[shard].epoch - (states[shard].token == token), expected) for shard in left}


def _begin(session: Session, expected: int, planned: Mapping[int, int | None], token: str) -> Flow[Rotation]:
    """Begin the rotation from epoch ``expected``: turn its first shard, then the others under the token of the first.

    If several processes begin, one of them turns the first shard. All go on under its token. So a rotation has one
    token, and no process turns a shard that another has turned already.
    """
    first, last = next(iter(planned.items()))
    begun = yield from _turn_all(session, {first: last}, token)
    try:
        token, planned = _of_this_rotation(session, (yield from read_states(session)), expected)
    except RotationConflict:  # no shard is left
        return begun
    done = yield from _turn_all(session, planned, token)
    return Rotation(max(begun.epoch, done.epoch), begun.shards + done.shards, (*begun.problems, *done.problems))


def _turn_all(
    session: Session, planned: Mapping[int, int | None], token: str, due: Due | None = None, *, build: bool = True
) -> Flow[Rotation]:
    """Turn shards one after the other, each once; ``token`` is the rotation's.

    ``planned`` has the shards in their order, each with the last epoch that it may leave, or None for any. Without
    ``due`` they turn whether or not their period is over. With ``build`` their turns are finished.
    """
    top, turned = 0, 0
    problems: list[str] = []
    for done, (shard, last) in enumerate(planned.items(), 1):
        try:
            reached, did, found = yield from _turn_shard(session, shard, token, last, due, build=build)
        except (ArchiveError, ServerUnavailable) as error:
            halted = yield from _note_halt(session, shard, error)
            if not halted:
                raise
            raise type(error)(f"{error}: {halted}") from error
        top, turned = max(top, reached), turned + did
        problems += found
        session.report(done, len(planned))
        yield REST
    for problem in problems:
        log.warning("%s", problem)
    return Rotation(top, turned, tuple(problems))


def _note_halt(session: Session, shard: int, error: UriFilterError) -> Flow[str]:
    """Note that the archive has stopped a shard's turn, and return a text that says so; "" if it has not."""
    if isinstance(error, ServerUnavailable) and "OOM" not in str(error):
        return ""
    (state,) = yield from read_states(session, [shard])
    if state.phase != "rotating":
        return ""
    with contextlib.suppress(RotationConflict):
        yield from ask(session, calls.build("halted", session.keys.shard(shard), state, number=0))
    text = f"shard {shard} has turned to epoch {state.epoch}, and its closed slice waits for the archive: mend that"
    return f"{text}, and rotate again: it goes on there, and turns no shard twice"


def _turn_shard(  # noqa: PLR0913 - each is needed
    session: Session, shard: int, token: str, last: int | None, due: Due | None, *, build: bool
) -> Flow[tuple[int, bool, list[str]]]:
    """Turn a shard once, unless its epoch is above ``last``; return its epoch, whether this did anything, problems."""
    did, turned, tried = False, False, (-1, 0)
    problems: list[str] = []
    while True:
        (state,) = yield from read_states(session, [shard])
        by = 1 if due is None or last is None else due.by(state, last)
        if state.phase == "rotating":
            if not build:
                return state.epoch, did, problems
            finished, found = yield from finish_rotation(session, shard)
            did, problems = did or finished, problems + found
        elif turned or (last is not None and state.epoch > last):
            yield from _expire(session, shard)
            return state.epoch, did, problems
        elif (state.epoch, by) != tried:
            if session.config.retention == "rolling":  # first, because a turn could not be finished without it
                yield from archive_of(session).check(session)
            times = {} if due is None else {"period": due.period, "by": by, "opened": due.opened}
            turn = Turn(shard, state, token, session.config.today, **times)
            turned, tried = (yield from _try_turn(session, turn)), (state.epoch, by)
            did = did or turned
        elif due and state.phase == "idle":  # its own server does not find its period over yet
            return state.epoch, did, problems
        else:
            text = f"shard {shard} cannot turn from epoch {state.epoch} in phase {state.phase}: try again later"
            raise RotationConflict(f"{session.where}: {text}")


def _expire(session: Session, shard: int) -> Flow[None]:
    """Remove the forgotten digests that are older than every live slice."""
    removed = calls.EXPIRED_A_CALL
    while removed == calls.EXPIRED_A_CALL:
        yield REST
        (removed,) = yield from ask(session, calls.expire(session.config.uid, session.keys.shard(shard)))


def _try_turn(session: Session, turn: Turn) -> Flow[bool]:
    """Turn a shard; return False if another process has turned it, or a period has not passed.

    First it waits until the server has freed a row of what the turn of another shard let go. So the bitmaps of one
    shard more than all live ones are there at once, as ``plan`` says. After a long pause a turn lets many rows go.
    """
    if (wait := session.freed_at - time.monotonic()) > 0:
        yield Pause(wait)
    for call in turn.calls(session):
        request = Request.of(call)
        yield from exchange(session, [request])
        if isinstance(request.error, RotationConflict):
            if not request.reply_lost:
                return False
            # The turn may have happened. If it is too late to know, it counts as done, so that none happens twice.
            (now,) = yield from read_states(session, [turn.shard])
            return now.token == turn.token or now.epoch > turn.state.epoch + turn.by
        if request.error is not None:
            if isinstance(request.error, ServerFull):
                yield from turn.free(session)
            raise request.error
        if call.frees_for:
            session.freed_at = time.monotonic() + min(call.frees_for, calls.freed_after(turn.new.segments))
        yield REST
    return True
