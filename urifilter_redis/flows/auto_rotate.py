"""Automatic rotation: clients that insert rotate a filter once its period is over, a bit after each call.

This holds for rings, and for rolling filters whose closed slices are in Redis. The server decides whether the period is
over, and a lease decides which client rotates. A rotation is a flow: a client stops it at a rest, and resumes it after
a later call. If a client never resumes it, another client finishes the rotation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from urifilter_redis.bloom.retention import TIMED, seconds_of
from urifilter_redis.engine.queries import ask, time_at, time_of
from urifilter_redis.engine.rotation_timer import FRUITLESS
from urifilter_redis.engine.steps import Flow, Pause, Send, Step, Work
from urifilter_redis.errors import RotationConflict, ServerUnavailable, UriFilterError
from urifilter_redis.flows.rotation import doubt, finish_missed, rotate_due
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.meta import opened_by
from urifilter_redis.protocol.outcomes import is_withheld, text_in

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

log = logging.getLogger("urifilter_redis")

#: Seconds after which one call, or ``close``, or a call that finds that periods were missed, stops a rotation at the
#: next rest.
A_CALL = 0.02
AT_CLOSE = 1.0
BEFORE_A_CALL = 1.0


def auto_rotate(session: Session, seconds: float | None = None) -> Flow[None]:
    """Begin or resume a rotation, if it is time for that, and stop it after some seconds, by default ``A_CALL``.

    A failure is logged and not raised, because the caller has its answers. Ctrl-C and cancellation are raised.
    """
    timer = session.rotation_timer
    taken = timer.take()
    if not taken:
        return
    end, pause = monotonic() + (A_CALL if seconds is None else seconds), 0.0
    flow: Flow[None] | None = None
    try:
        if not timer.lease_is_old or (yield from _renew(session)):
            flow, pause = yield from _resume(session, taken[0] or rotate_if_due(session), end)
    except BaseException:
        timer.check_in(0)
        raise
    finally:
        timer.put(flow, pause)


def turn_missed(session: Session) -> Flow[None]:
    """Turn the shards because periods were missed, before a call inserts: its insertion would hide the missed periods.

    The next histories of a rolling filter are built later; an unfinished build is resumed for a while. No failure is
    raised: the call inserts all the same, and old items expire late. Ctrl-C and cancellation are raised.
    """
    timer = session.rotation_timer
    timer.fruitless += 1
    try:
        done = yield from rotate_due(session, build=False)
        if done is None:
            flow, _ = yield from _resume(session, finish_missed(session), monotonic() + BEFORE_A_CALL)
            if flow is not None:
                flow.close()
            done = yield from rotate_due(session, build=False)
    except UriFilterError as error:
        timer.fruitless = FRUITLESS
        _note_failure(session, error)
        return
    if done is not None:
        timer.fruitless = 0
        timer.check_in(0)  # to finish the turns of a rolling filter
        log.info("%s: turned to epoch %d, as periods were missed", session.where, done.epoch)


def leave(session: Session) -> Flow[None]:
    """Rotate for ``AT_CLOSE`` at most and release the lease, because the client is closed."""
    timer = session.rotation_timer
    timer.check_process()
    if timer.inserted:
        yield from auto_rotate(session, AT_CLOSE)
        timer.put()
        yield from _release(session)


def tell_who_rotates(session: Session) -> None:
    """If clients that insert do not rotate a new filter, log who has to."""
    config = session.config
    if config.retention in TIMED and not config.turned_by_inserts:
        text = "its archive is not in Redis, so that inserts do not rotate it: run urifilter worker, or"
        log.warning("%s: %s urifilter rotate --due from cron", session.where, text)


def lease(session: Session, step: str, token: str) -> Flow[bool]:
    """``take`` (or prolong) or ``release`` the lease of the process that rotates; return whether this succeeded."""
    (reply,) = yield from ask(session, _lease_call(session, step, token))
    return bool(reply)


def rotate_if_due(session: Session) -> Flow[None]:
    """Take the lease and rotate, if the period is over or a rotation is unfinished."""
    timer = session.rotation_timer
    timer.fruitless = 0
    timer.wait(timer.lease)  # unless ``_is_due`` finds a better time
    if not (yield from _is_due(session)):
        return
    began = monotonic()
    if not (yield from lease(session, "take", timer.token)):
        timer.wait(timer.lease)
        return
    timer.took_lease(began)
    if not (yield from _is_due(session)):  # another process may have had the lease meanwhile, and finished
        return
    done = yield from rotate_due(session)
    if done is not None:
        log.info("%s: rotated to epoch %d", session.where, done.epoch)


def _resume(session: Session, flow: Flow[None], end: float) -> Flow[tuple[Flow[None] | None, float]]:
    """Resume a rotation until its end, or the first rest after ``end``, or a pause.

    Returns:
        The unfinished rotation or None, and the seconds to wait before it is resumed.
    """
    resume: Callable[[Any], Step] = flow.send
    outcome: Any = None
    while True:
        try:
            step = resume(outcome)
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller of ``insert`` gets the answers
            _note_failure(session, error)
            break
        if isinstance(step, Pause) and (step.seconds > 0 or monotonic() >= end):
            return flow, step.seconds
        try:
            resume, outcome = flow.send, (yield step)
        except Exception as error:
            if not isinstance(step, Work):
                raise
            resume, outcome = flow.throw, error
    yield from _release(session)
    return None, 0.0


def _is_due(session: Session) -> Flow[bool]:
    """Whether shard 0, which is the last of all to turn and to finish, is unfinished or has had its period."""
    keys, config = session.keys.shard(0), session.config
    fields = ("HMGET", keys.meta, "uid", "phase", "opened", "ahead")
    values, told = yield from ask(session, fields, time_at(session, 0))
    uid, phase, opened, ahead = (text_in(value or "") for value in values)
    now = time_of(told)
    session.clock_of(0).learn(now)
    if uid != config.uid or phase not in {"idle", "rotating"}:
        return False
    if int(opened) > now:
        yield from ask(session, calls.reopen(config.uid, keys))
    if phase == "idle" and abs(now / 1000 - time()) > seconds_of(config.period or "") / 2:
        yield from doubt(session)
    since = opened_by(now, int(opened), *map(int, ahead.split()))
    if phase == "idle":
        session.rotation_timer.learn(config, since, now)
    return phase == "rotating" or now >= since + 1000 * seconds_of(config.period or "")


def _renew(session: Session) -> Flow[bool]:
    """Renew the lease if this client has earned that, else release it. Return whether this client has the lease."""
    timer = session.rotation_timer
    if not timer.lease_is_earned:
        yield from _release(session)
        timer.wait(0)
        return False
    began = monotonic()
    (outcome,) = yield Send([_lease_call(session, "take", timer.token).command()])
    if outcome != 1:  # another client has it, or the server is away
        timer.leased = None
        timer.wait(timer.lease)
        return False
    timer.took_lease(began)
    return True


def _release(session: Session) -> Flow[None]:
    """Release the lease, once: if that fails, the lease ends by itself."""
    timer = session.rotation_timer
    if timer.leased is not None:
        timer.leased = None
        yield Send([_lease_call(session, "release", timer.token).command()])


def _lease_call(session: Session, step: str, token: str) -> calls.Call:
    time = round(1000 * calls.lease_of(session.config))
    return calls.tend(step, session.config.uid, session.keys.shard(0), token, time)


def _note_failure(session: Session, error: Exception) -> None:
    """Log the failure of a rotation, not often, and retry later, or never if this user may not rotate."""
    timer = session.rotation_timer
    if isinstance(error, ServerUnavailable) and is_withheld(error):
        timer.stop()
        log.warning("%s; this client leaves rotations to others (urifilter rotate --due, or worker)", error)
        return
    timer.wait(timer.lease)
    if isinstance(error, RotationConflict):
        log.debug("%s", error)
        return
    if isinstance(error, ServerUnavailable):
        timer.leased = None  # nothing is sent to a server that is away
    if timer.may_report(str(error)):
        known = isinstance(error, UriFilterError)
        text = str(error) if known else f"{session.where}: {error!r}"
        log.warning("a rotation failed, and is tried again later: %s", text, exc_info=None if known else error)
