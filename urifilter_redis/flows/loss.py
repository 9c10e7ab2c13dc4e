"""What a filter lost: each restore that nobody has asked for is told until somebody acknowledges it.

A restore brings back a checkpoint, so what was inserted after it may be answered "new" once more. No caller gets an
error for that. So the restored shards note it in their ``meta``, where every doctor, page and metric sees it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from urifilter_redis.engine.queries import ask_each
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.flows.turn import read_states
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.meta import ShardState


@dataclass(frozen=True, slots=True)
class Loss:
    """Restores that nobody has acknowledged; the attributes are the keys of its JSON. Times are server times.

    Attributes:
        shards: the number of shards that were restored.
        at: the time of the last of these restores, seconds since 1970.
        since: the time at which the oldest of their checkpoints began, seconds since 1970; None if a shard had none.
            What was inserted after it may be answered "new" once more.

    Example:
        >>> news.info().loss is None
        True
    """

    shards: int
    at: float
    since: float | None


def loss_note(state: ShardState | None, now: int, begun: int) -> str:
    """Return the note about a restore at ``now`` from a checkpoint that began at ``begun``, ms; 0: there was none.

    ``state`` is the shard's before. A loss that it notes already, and nobody has acknowledged, goes on.
    """
    if state is not None and state.lost:
        begun = min(begun, _times(state)[1])
    return f"{now}:{begun}"


def loss_in(states: Sequence[ShardState]) -> Loss | None:
    """Return the loss that the states of shards note; None: there is none."""
    noted = [_times(each) for each in states if each.lost]
    if not noted:
        return None
    return Loss(len(noted), max(at for at, _ in noted) / 1000, min(begun for _, begun in noted) / 1000 or None)


def loss_text(loss: Loss, shards: int, name: str) -> str:
    """Return the facts and the advice about a loss of filter ``name``, which has so many shards."""
    lost = "its bitmap was lost, or older, and is" if shards == 1 else f"{loss.shards} of {shards} shards are"
    again = "without a checkpoint, so everything that it had"
    if loss.since is not None:
        since = dt.datetime.fromtimestamp(loss.since, dt.UTC)
        again = f"as of {since:%Y-%m-%d %H:%M:%S} UTC: what was inserted after that"
    advice = f"find out why, then run urifilter acknowledge {name}"
    return f"{lost} restored from the archive {again} may be answered new once more: {advice}"


def acknowledge(session: Session) -> Flow[int]:
    """Note that somebody knows of the restores so far; return the number of shards whose restore was not known yet.

    A restore that comes meanwhile is told again.

    Raises:
        FilterNotFound: the filter is gone.
        SliceLost: the ``meta`` of a shard is damaged.
    """
    states = yield from read_states(session)
    noted = [(keys, state.lost) for keys, state in zip(session.keys.all, states, strict=True) if state.lost]
    made = [calls.tend("acknowledge", session.uid, keys, lost) for keys, lost in noted]
    return sum(map(int, (yield from ask_each(session, made))))


def _times(state: ShardState) -> tuple[int, int]:
    at, begun = map(int, state.lost.split(":"))
    return at, begun
