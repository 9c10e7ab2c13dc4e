"""The flows that rotate ring and rolling filters, because time has passed.

Nothing here is trusted to finish: each step is a script that is fenced by epoch, phase and token, ``next_step`` says
from ``meta`` alone what is to be done, and whoever comes next goes on where the last one stopped.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.errors import RotationConflict, UriFilterError
from urifilter_redis.exchange import Request, ask, exchange
from urifilter_redis.history import build, finish, store
from urifilter_redis.retention import TIMED, seconds_of
from urifilter_redis.turning import Step, Turn, next_step, read_states, turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.session import Session
    from urifilter_redis.state import ShardState
    from urifilter_redis.steps import Flow

__all__ = ["Rotation", "due", "epoch", "next_due", "next_rotation", "rotate", "rotate_due"]

log = logging.getLogger("urifilter_redis")

#: How often in a row another process may come first before something must be wrong.
CONFLICTS = 100


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did.

    Attributes:
        epoch: of every shard now, or later.
        shards: how many have turned or been finished by this process.
        problems: slices of the archive that are missing or corrupt. What they held expires late, never early.
    """

    epoch: int
    shards: int = 0
    problems: tuple[str, ...] = ()


def rotate(session: Session, expected_epoch: int | None = None) -> Flow[Rotation]:
    """Rotate every shard once; first finish a rotation that somebody has left.

    Args:
        session: of the filter.
        expected_epoch: rotate only from this epoch, and not if anybody else has done so; None: in any case.

    Raises:
        RotationConflict: the filter is not, or not any more, in that epoch.
        UriFilterError: the retention does not rotate by time.
    """
    _check_timed(session)
    states = yield from read_states(session)
    token = secrets.token_hex(8)
    if expected_epoch is not None:
        _check_expected(session, states, expected_epoch)
        return (yield from _bring_all(session, expected_epoch + 1, token))
    target = max(each.epoch for each in states) + 1
    while not (yield from _win(session, target, token)):
        target += 1
    return (yield from _bring_all(session, target, token, won=True))


def due(session: Session) -> Flow[int | None]:
    """Return the epoch that a rotation is due to reach; None if none is due.

    One is when a shard is behind the others, or when the last that turned has done so a period ago: then nothing
    expires early, however late some shards turned.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    _check_timed(session)
    states = yield from read_states(session)
    ((seconds, microseconds),) = yield from ask(session, ("TIME",))
    top = max(state.epoch for state in states)
    if any(next_step(state, top) is not Step.DONE for state in states):
        return top
    now = int(seconds) + int(microseconds) / 1e6
    return top + 1 if now >= next_due(session.config.period or "", states) else None


def epoch(session: Session) -> Flow[int]:
    """Return how often the filter was rotated (growing: how many slices its largest shard has beside the first)."""
    states = yield from read_states(session)
    return max(state.epoch for state in states)


def next_rotation(session: Session) -> Flow[float]:
    """Return when the next rotation is due, in seconds since 1970, server time.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    _check_timed(session)
    return next_due(session.config.period or "", (yield from read_states(session)))


def next_due(period: str, states: Sequence[ShardState]) -> float:
    """Return when the next rotation is due, in seconds since 1970, server time."""
    return max(state.opened for state in states) / 1000 + seconds_of(period)


def rotate_due(session: Session) -> Flow[Rotation | None]:
    """Rotate if it is due, once however many periods were missed; None if it is not.

    Raises:
        UriFilterError: the retention does not rotate by time.
    """
    target = yield from due(session)
    if target is None:
        return None
    done = yield from _bring_all(session, target, secrets.token_hex(8))
    return done if done.shards else None  # somebody else came first


def _check_timed(session: Session) -> None:
    retention = session.config.retention
    if retention not in TIMED:
        why = "it grows when it is full" if retention == "growing" else "nothing in it expires"
        raise UriFilterError(f"{session.where}: retention {retention} does not rotate: {why}")


def _check_expected(session: Session, states: Sequence[ShardState], expected: int) -> None:
    epochs = {state.epoch for state in states}
    unfinished = any(next_step(state, expected + 1) is not Step.DONE for state in states)
    if not epochs <= {expected, expected + 1} or not unfinished:
        text = f"it is in epoch {max(epochs)} and not in {expected}"
        raise RotationConflict(f"{session.where}: {text}: somebody else has rotated, or nobody yet")


def _bring_all(session: Session, target: int, token: str, *, won: bool = False) -> Flow[Rotation]:
    """Bring every shard to the epoch ``target``, one after the other; ``won``: shard 0 has turned already."""
    shards, problems = 0, []
    for shard in range(session.config.shards):
        did, found = yield from _bring(session, shard, target, token)
        shards += did or (won and shard == 0)
        problems += found
        session.report(shard + 1, session.config.shards)
    for problem in problems:
        log.warning("%s", problem)
    return Rotation(target, shards, tuple(problems))


def _win(session: Session, target: int, token: str) -> Flow[bool]:
    """Turn shard 0 to ``target``; False if somebody else has: a rotation by hand is one more than those of others."""
    doubtful = False
    while True:
        yield from _bring(session, 0, target - 1, token="")
        (state,) = yield from read_states(session, [0])
        if state.token == token:
            return True
        if state.epoch >= target:
            return doubtful and state.epoch > target  # perhaps ours, and a third has turned since: never twice
        if state.phase == "idle":
            request = yield from _try_turn(session, state, token)
            if request.answered:
                return True
            doubtful = doubtful or request.reply_lost


def _try_turn(session: Session, state: ShardState, token: str) -> Flow[Request]:
    """Turn shard 0 if nobody else does."""
    wanted = Turn.again(session, 0, state, token)
    requests = [Request.of(wanted.call(session, step)) for step in ("allocate", "turn")]
    for request in requests:
        yield from exchange(session, [request])
        if isinstance(request.error, RotationConflict):
            break
        if request.error is not None:
            raise request.error
    return requests[-1]


def _bring(session: Session, shard: int, target: int, token: str) -> Flow[tuple[bool, list[str]]]:
    """Do to a shard what ``next_step`` says until it is in the epoch ``target``; return whether, and problems."""
    did, conflicts = False, 0
    problems: list[str] = []
    while True:
        (state,) = yield from read_states(session, [shard])
        step = next_step(state, target)
        if step is Step.DONE:
            return did, problems
        try:
            if step is Step.TURN:
                yield from turn(session, Turn.again(session, shard, state, token))
            elif step is Step.STORE:
                yield from store(session, shard, state)
            elif step is Step.BUILD:
                problems += yield from build(session, shard, state)
            else:
                yield from finish(session, shard, state)
            did, conflicts = True, 0
        except RotationConflict:
            conflicts += 1
            if conflicts > CONFLICTS:
                raise
