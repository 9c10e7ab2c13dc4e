"""Time passes by itself: clients that insert turn a filter once its period is over, a bit after each call.

This holds for rings, and for rolling filters whose closed slices are in Redis. Whether the period is over is decided
by the server, and who turns is decided by a lease. A rotation is a flow that is left at a rest, and gone on with after
a later call. What a client leaves for good, another client goes on with.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

from urifilter_redis.bloom.retention import TIMED, seconds_of
from urifilter_redis.engine.queries import ask, time_at, time_of
from urifilter_redis.engine.rotation_timer import FRUITLESS
from urifilter_redis.engine.steps import Pause, Send, Work
from urifilter_redis.errors import RotationConflict, ServerUnavailable, UriFilterError
from urifilter_redis.flows.rotation import rotate_due
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.meta import opened_by
from urifilter_redis.protocol.outcomes import text_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow, Step

__all__ = ["auto_rotate", "lease", "leave", "look_and_rotate", "tell_who_rotates", "turn_missed"]

log = logging.getLogger("urifilter_redis")

#: Seconds that one call goes on with a rotation, and that ``close`` does. The part that is begun then is finished.
A_CALL = 0.02
AT_CLOSE = 1.0


def auto_rotate(session: Session, seconds: float | None = None) -> Flow[None]:
    """Look whether the period is over, if it is time to look, and go on with the rotation for ``A_CALL`` or so long.

    No failure of it is raised, because the caller has its answers; it is logged. Ctrl-C and cancellation are raised.
    """
    taken = session.rotation_timer.take()
    if not taken:
        return
    end, flow, pause = monotonic() + (A_CALL if seconds is None else seconds), taken[0], 0.0
    try:
        if not session.rotation_timer.lease_is_old or (yield from _renew(session)):
            flow, pause = yield from _go_on(session, flow or look_and_rotate(session), end)
        else:
            flow = None
    except BaseException:
        flow = None
        session.rotation_timer.check_in(0)
        raise
    finally:
        session.rotation_timer.put(flow, pause)


def leave(session: Session) -> Flow[None]:
    """Attend once more for a second at most, and give the lease back, because the client is closed."""
    rotation_timer = session.rotation_timer
    rotation_timer.check_process()
    if rotation_timer.inserted:
        yield from auto_rotate(session, AT_CLOSE)
        rotation_timer.put()
        yield from _give_back(session)


def tell_who_rotates(session: Session) -> None:
    """Log, for a new filter, that clients that insert do not turn it, if they do not."""
    config = session.config
    if config.retention in TIMED and not config.turned_by_inserts:
        text = "its archive is not in Redis, so that inserts do not rotate it: run urifilter worker, or"
        log.warning("%s: %s urifilter rotate --due from cron", session.where, text)


def lease(session: Session, step: str, token: str) -> Flow[bool]:
    """Take, prolong or release the lease of those who rotate; return whether this succeeded."""
    (reply,) = yield from ask(session, _lease_call(session, step, token))
    return bool(reply)


def _lease_call(session: Session, step: str, token: str) -> calls.Call:
    time = round(1000 * calls.lease_of(session.config))
    return calls.tend(step, session.config.uid, session.keys.shard(0), token, time)


def _go_on(session: Session, flow: Flow[None], end: float) -> Flow[tuple[Flow[None] | None, float]]:
    """Go on with a rotation to its end, or to the first rest after ``end``, or to a pause.

    Returns:
        The rotation that is left, and the seconds to wait before it goes on; None if nothing is left.
    """
    step = _next(session, flow.send, None)
    while step is not None:
        if isinstance(step, Pause) and (step.seconds > 0 or monotonic() >= end):
            return flow, step.seconds
        try:
            outcome = yield step
        except Exception as error:
            if not isinstance(step, Work):
                raise
            step = _next(session, flow.throw, error)
        else:
            step = _next(session, flow.send, outcome)
    yield from _give_back(session)
    return None, 0.0


def _next(session: Session, go_on: Callable[[Any], Step], value: object) -> Step | None:
    """Return the next step of a rotation; None if it has ended, or failed."""
    try:
        return go_on(value)
    except StopIteration:
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller of ``insert`` gets the answers
        _note_failure(session, error)
        return None


def turn_missed(session: Session) -> Flow[None]:
    """Turn the shards because periods were missed, before a call inserts: what it wrote would hide that.

    The next histories of a rolling filter are built later. No failure is raised: the call inserts then, and what should
    have expired does so late. Ctrl-C and cancellation are raised.
    """
    rotation_timer = session.rotation_timer
    rotation_timer.fruitless += 1
    try:
        done = yield from rotate_due(session, build=False)
    except UriFilterError as error:
        rotation_timer.fruitless = FRUITLESS
        _note_failure(session, error)
        return
    if done is not None:
        rotation_timer.fruitless = 0
        rotation_timer.check_in(0)  # for what is left of a rolling filter's turn
        log.info("%s: turned to epoch %d, as periods were missed", session.where, done.epoch)


def look_and_rotate(session: Session) -> Flow[None]:
    """Look; if the period is over, or a rotation is unfinished, take the lease and rotate."""
    rotation_timer = session.rotation_timer
    rotation_timer.fruitless = 0
    rotation_timer.wait(rotation_timer.lease)  # unless something better is learned below
    if not (yield from _look(session)):
        return
    began = monotonic()
    if not (yield from lease(session, "take", rotation_timer.token)):
        rotation_timer.wait(rotation_timer.lease)
        return
    rotation_timer.took_lease(began)
    if not (yield from _look(session)):  # another process may have had the lease, and finished, since the first look
        return
    done = yield from rotate_due(session)
    if done is not None:
        log.info("%s: rotated to epoch %d", session.where, done.epoch)


def _look(session: Session) -> Flow[bool]:
    """Whether shard 0, which is the last of all to turn and to finish, is unfinished or has had its period."""
    keys = session.keys.shard(0)
    fields = ("HMGET", keys.meta, "uid", "phase", "opened", "ahead")
    values, time = yield from ask(session, fields, time_at(session, 0))
    uid, phase, opened, ahead = (text_in(value or "") for value in values)
    now = time_of(time)
    session.clock_of(0).learn(now)
    if uid != session.config.uid or phase not in {"idle", "rotating"}:
        return False
    if int(opened) > now:
        yield from ask(session, calls.reopen(session.config.uid, keys))
    since = opened_by(now, int(opened), *map(int, ahead.split()))
    if phase == "idle":
        session.rotation_timer.learn(session.config, since, now)
    return phase == "rotating" or now >= since + 1000 * seconds_of(session.config.period or "")


def _renew(session: Session) -> Flow[bool]:
    """Renew a lease that was earned; give back any other. Return whether this client has the lease."""
    rotation_timer = session.rotation_timer
    if not rotation_timer.lease_is_earned:
        yield from _give_back(session)
        rotation_timer.wait(0)
        return False
    began = monotonic()
    (outcome,) = yield Send([_lease_call(session, "take", rotation_timer.token).command()])
    if outcome != 1:  # another has it, or the server is away
        rotation_timer.leased = None
        rotation_timer.wait(rotation_timer.lease)
        return False
    rotation_timer.took_lease(began)
    return True


def _give_back(session: Session) -> Flow[None]:
    """Give the lease back, once: if that fails, the lease ends by itself."""
    rotation_timer = session.rotation_timer
    if rotation_timer.leased is not None:
        rotation_timer.leased = None
        yield Send([_lease_call(session, "release", rotation_timer.token).command()])


def _note_failure(session: Session, error: Exception) -> None:
    """Log the failure of a rotation, not often, and look later, or never if this user may not rotate."""
    rotation_timer = session.rotation_timer
    if isinstance(error, ServerUnavailable) and "NOPERM" in str(error):
        rotation_timer.stop()
        log.warning("%s; this client leaves rotations to others (urifilter rotate --due, or worker)", error)
        return
    rotation_timer.wait(rotation_timer.lease)
    if isinstance(error, RotationConflict):
        log.debug("%s", error)
        return
    if isinstance(error, ServerUnavailable):
        rotation_timer.leased = None  # nothing is sent to a server that is away
    if rotation_timer.may_report(str(error)):
        known = isinstance(error, UriFilterError)
        text = str(error) if known else f"{session.where}: {error!r}"
        log.warning("a rotation failed, and is tried again later: %s", text, exc_info=None if known else error)
