"""The flows that rotate ring and rolling filters, because time has passed.

Nothing here is trusted to finish: each step is a script that is fenced by epoch, phase and token, ``left_of`` says
from ``meta`` alone what is to be done, and whoever comes next goes on where the last one stopped.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.archive.register import require_archive
from urifilter_redis.archive.slices import archive_of
from urifilter_redis.bloom.retention import TIMED, seconds_of
from urifilter_redis.engine.queries import ask, chunked, server_time
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.errors import RotationConflict, UriFilterError
from urifilter_redis.flows.history import archive_closed, build_next, finish_next
from urifilter_redis.flows.turn import Left, Turn, left_of, read_states
from urifilter_redis.protocol import calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.meta import ShardState

__all__ = [
    "Rotation",
    "due",
    "epoch",
    "finish_rotation",
    "next_due",
    "next_rotation",
    "rotate",
    "rotate_due",
    "shards_due",
]

log = logging.getLogger("urifilter_redis")

#: How often in a row another process may come first before something must be wrong.
CONFLICTS = 100


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did.

    Attributes:
        epoch: how often the filter has been rotated now; shards may be behind.
        shards: how many this process has turned, or brought to the end of a turn that somebody had left.
        problems: slices of the archive that are missing or corrupt. What they held expires late, never early.
    """

    epoch: int
    shards: int = 0
    problems: tuple[str, ...] = ()


def rotate(session: Session, expected_epoch: int | None = None, *, dry_run: bool = False) -> Flow[Rotation]:
    """Turn every shard once, after finishing what a rotator that died may have left.

    No shard turns twice in one rotation: one that is behind stays so until the next that is due; what it holds
    expires late, never early.

    Args:
        session: of the filter.
        expected_epoch: turn only shards that are not past this epoch; None: all, also if others rotate meanwhile.
        dry_run: do nothing; return what would be reached.

    Raises:
        RotationConflict: the filter is not, or not any more, in that epoch.
        ArchiveMissing: the filter needs its archive, which was not named or is not there.
        UriFilterError: the retention does not rotate by time.
    """
    _check_timed(session)
    states = yield from read_states(session)
    top = max(state.epoch for state in states)
    token = secrets.token_hex(8)
    planned: dict[int, int | None] = dict.fromkeys(range(len(states)))
    if expected_epoch is not None:
        token, planned = _of_this_rotation(session, states, expected_epoch)
    if dry_run:
        return Rotation(1 + (top if expected_epoch is None else expected_epoch))
    done = yield from _turn_all(session, planned, token)
    if not done.shards:
        raise RotationConflict(f"{session.where}: somebody else has just rotated it to epoch {done.epoch}")
    return done


def due(session: Session) -> Flow[int | None]:
    """Return the epoch that a rotation is due to reach; None if none is due.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    states, now = yield from _read(session)
    planned = shards_due(session.config.period or "", states, now)
    return max(last for last in planned.values()) + 1 if planned else None


def rotate_due(session: Session) -> Flow[Rotation | None]:
    """Rotate if it is due, once however many periods were missed; None if it is not.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    states, now = yield from _read(session)
    ahead = [shard for shard, state in enumerate(states) if state.opened > now]
    for some in chunked(ahead):
        yield from ask(session, *(calls.reopen(session.config.uid, session.keys.shard(shard)) for shard in some))
    planned = shards_due(session.config.period or "", states, now)
    done = yield from _turn_all(session, planned, secrets.token_hex(8))
    return done if done.shards else None  # somebody else may have come first


def epoch(session: Session) -> Flow[int]:
    """Return how often the filter was rotated (growing: how many slices its largest shard has beside the first)."""
    states = yield from read_states(session)
    return max(state.epoch for state in states)


def next_rotation(session: Session) -> Flow[float]:
    """Return when the next rotation is due, in seconds since 1970, server time.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    states, now = yield from _read(session)
    return next_due(session.config.period or "", states, now)


def next_due(period: str, states: Sequence[ShardState], now: int) -> float:
    """Return when the next rotation is due, in seconds since 1970, server time.

    That is a period after the last shard has turned, so that nothing expires early however late some turned; but a
    shard that is behind the others is due a period after it has turned itself. One that has turned in the future,
    as the server's clock was ahead, has turned ``now`` (server time, ms): what it holds expires late, never early.
    """
    top = max(state.epoch for state in states)
    behind = [state.opened_by(now) for state in states if state.epoch < top]
    opened = min(behind) if behind else max(state.opened_by(now) for state in states)
    return opened / 1000 + seconds_of(period)


def shards_due(period: str, states: Sequence[ShardState], now: int) -> dict[int, int]:
    """Return which shards are to turn, and the epoch that each is to leave, or has left and not finished.

    ``now`` is the server's time, ms. A turn that was left is finished at any time.
    """
    top = max(state.epoch for state in states)
    unfinished = {shard: state.epoch - 1 for shard, state in enumerate(states) if left_of(state) is not Left.NONE}
    behind = {shard: state for shard, state in enumerate(states) if state.epoch < top and shard not in unfinished}
    overdue = {shard: state.epoch for shard, state in behind.items() if _is_due(period, [state], now)}
    if unfinished or behind:
        return unfinished | overdue
    return dict.fromkeys(range(len(states)), top) if _is_due(period, states, now) else {}


def _read(session: Session) -> Flow[tuple[list[ShardState], int]]:
    """Return the states of the shards, and the server's time after that, ms."""
    _check_timed(session)
    states = yield from read_states(session)
    return states, (yield from server_time(session))


def _is_due(period: str, states: Sequence[ShardState], now: int) -> bool:
    return now / 1000 >= next_due(period, states, now)


def _check_timed(session: Session) -> None:
    retention = session.config.retention
    if retention not in TIMED:
        why = "it grows when it is full" if retention == "growing" else "nothing in it expires"
        raise UriFilterError(f"{session.where}: retention {retention} does not rotate: {why}")
    if session.config.archive not in {None, "redis"}:
        require_archive(session)  # whoever has it has seen that Redis is not older than it


def _of_this_rotation(
    session: Session, states: Sequence[ShardState], expected: int
) -> tuple[str, dict[int, int | None]]:
    """Return the token of the rotation from epoch ``expected``, and the shards that are still to turn in it.

    Those that lead turn first; from then on their token marks every shard that has had its turn.
    """
    top = max(state.epoch for state in states)
    begun = top == expected + 1
    token = next(state.token for state in states if state.epoch == top) if begun else secrets.token_hex(8)
    left = [n for n, state in enumerate(states) if state.token != token or left_of(state) is not Left.NONE]
    left = [n for n in left if states[n].epoch <= expected or left_of(states[n]) is not Left.NONE]
    if top not in {expected, expected + 1} or not left:
        text = f"it is in epoch {top} and not in {expected}"
        raise RotationConflict(f"{session.where}: {text}: somebody else has rotated, or nobody yet")
    left.sort(key=lambda n: -states[n].epoch)
    return token, {n: _left_epoch(states[n], token) for n in left}


def _left_epoch(state: ShardState, token: str) -> int:
    """Return the epoch that a shard leaves in this rotation; one that bears its token has left it already."""
    return state.epoch - 1 if state.token == token else state.epoch


def _turn_all(session: Session, planned: Mapping[int, int | None], token: str) -> Flow[Rotation]:
    """Turn shards, one after the other; for each the last epoch that is to be left, or None for any."""
    top, turned = 0, 0
    problems: list[str] = []
    for done, (shard, last) in enumerate(planned.items(), 1):
        reached, did, found = yield from _turn_shard(session, shard, token, last)
        top, turned = max(top, reached), turned + did
        problems += found
        session.report(done, len(planned))
    for problem in problems:
        log.warning("%s", problem)
    return Rotation(top, turned, tuple(problems))


def _turn_shard(session: Session, shard: int, token: str, last: int | None) -> Flow[tuple[int, bool, list[str]]]:
    """Turn a shard once, unless it is past ``last``; return its epoch, whether anything was done, and problems."""
    did, turned, seen = False, False, -1
    problems: list[str] = []
    while True:
        (state,) = yield from read_states(session, [shard])
        if left_of(state) is not Left.NONE:
            finished, found = yield from finish_rotation(session, shard)
            did, problems = did or finished, problems + found
        elif turned or (last is not None and state.epoch > last):
            yield from _expire(session, shard)
            return state.epoch, did, problems
        elif state.epoch == seen:
            text = f"shard {shard} cannot turn from epoch {seen}, {state.phase}, and nobody else does"
            raise RotationConflict(f"{session.where}: {text}")
        else:
            if session.config.retention == "rolling":  # before anything has turned that could not be finished
                yield from archive_of(session).check(session)
            turned, seen = (yield from _try_turn(session, shard, state, token)), state.epoch
            did = did or turned


def _expire(session: Session, shard: int) -> Flow[None]:
    """Remove what was forgotten before all that the live slices hold."""
    removed = calls.EXPIRED_A_CALL
    while removed == calls.EXPIRED_A_CALL:
        (removed,) = yield from ask(session, calls.expire(session.config.uid, session.keys.shard(shard)))


def _try_turn(session: Session, shard: int, state: ShardState, token: str) -> Flow[bool]:
    """Turn a shard from the epoch it was seen in; False if somebody else has."""
    wanted = Turn.again(session, shard, state, token)
    for step in ("allocate", "turn"):
        # One after the other: the allocation takes the server some ms, and others may be served between.
        request = Request.of(wanted.call(session, step))
        yield from exchange(session, [request])
        if isinstance(request.error, RotationConflict):
            return (yield from _was_ours(session, shard, state, token)) if request.reply_lost else False
        if request.error is not None:
            raise request.error
    return True


def _was_ours(session: Session, shard: int, before: ShardState, token: str) -> Flow[bool]:
    """Say whether a turn whose reply was lost has happened; if that cannot be known any more, yes: never twice."""
    (now,) = yield from read_states(session, [shard])
    return now.token == token or now.epoch > before.epoch + 1


def finish_rotation(session: Session, shard: int) -> Flow[tuple[bool, list[str]]]:
    """Do what is left of a shard's rotation; return whether there was anything, and problems of the archive."""
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
                if state.late and not problems:  # found by a rotator that died, or before a reply was lost
                    problems.append(f"{session.where}: shard {shard}: slices were missing while its history was built")
                yield from finish_next(session, shard, state)
            did, conflicts = True, 0
        except RotationConflict:
            conflicts += 1
            if conflicts > CONFLICTS:
                raise
