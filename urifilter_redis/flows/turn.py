"""One turn of one shard: today is closed, and an empty bitmap becomes today.

Rings and rolling filters turn because a period is over (``rotation``), growing ones because today is full.
"""

from __future__ import annotations

import logging
import math
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import growing_slice
from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.engine.queries import ask, chunked
from urifilter_redis.engine.steps import REST
from urifilter_redis.errors import FilterFull, RotationConflict
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import check_format
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage.documents import piece_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.calls import Call

__all__ = [
    "Left",
    "Turn",
    "grow",
    "left_of",
    "names_after",
    "piece_count",
    "read_states",
    "turn",
]

log = logging.getLogger("urifilter_redis")


class Left(Enum):
    """The next remaining step of a shard's last turn; all but ``NONE`` are for rolling."""

    #: The turn is finished.
    NONE = auto()
    #: The closed slice must be written to the archive.
    ARCHIVE = auto()
    #: Pieces of the next history must be built.
    BUILD = auto()
    #: The next history is built and must become the history.
    FINISH = auto()


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn to be made.

    Attributes:
        shard: the number of the shard.
        state: the shard's state as it was last read; its uid and epoch fence the turn.
        token: the token of this rotation.
        new: the geometry of the next today.
        limit: growing: the number of items that the next today is for; else 0.
        period: ms that must have passed since the last turn, by the shard's own server; 0: turn in any case.
        by: the epochs to go forward.
        opened: the time at which the next today counts as opened, at the earliest, ms; 0: when the shard turns.
    """

    shard: int
    state: ShardState
    token: str
    new: Slice
    limit: int = 0
    period: int = 0
    by: int = 1
    opened: int = 0

    def call(self, session: Session, step: str) -> Call:
        """Build the call of a step: ``allocate`` or ``turn``."""
        config, keys = session.config, session.keys.shard(self.shard)
        names = names_after(self.state, config.retention, config.slices, self.by)
        gone = [each.name for each in self.state.view.slices if each.name not in names]
        more = {"limit": self.limit, "period": self.period, "by": self.by, "opened": self.opened}
        return calls.turn(step, keys, self.state, self.token, self.new, **more, names=names + gone)


def left_of(state: ShardState) -> Left:
    """Return the next remaining step of a shard's last turn, from its ``meta`` alone."""
    if state.phase != "rotating":
        return Left.NONE
    if state.pieces is None:
        return Left.ARCHIVE
    return Left.BUILD if state.pieces < piece_count(state) else Left.FINISH


def names_after(state: ShardState, retention: str, window: int | None, by: int = 1) -> list[str]:
    """Return the names of the live slices after the next turn, oldest first; it goes forward ``by`` epochs."""
    closed = len(state.view.slices)
    if retention == "rolling":
        return ["history", "history_1", "today"][-(closed + 1) :] if by < (window or math.inf) else ["today"]
    if retention == "ring" and window:
        oldest = state.epoch + by - window + 1
        closed -= sum(epoch < oldest for epoch in (state.epoch, *(each.epoch for each in state.closed)))
        closed = min(closed, window - 1)
    return [f"history_{n}" for n in range(closed, 0, -1)] + ["today"]


def piece_count(state: ShardState) -> int:
    """Return the number of pieces in which a bitmap of a rolling shard is archived and built."""
    return len(list(piece_spans(state.view.slices[-1].size)))


def turn(session: Session, wanted: Turn) -> Flow[None]:
    """Turn a shard.

    Raises:
        RotationConflict: another process has turned it.
        SliceLost: a live bitmap is missing.
    """
    # Not in one pipeline: the allocation takes the server some ms, and it can serve others before the turn.
    for step in ("allocate", "turn"):
        yield from ask(session, wanted.call(session, step))


def grow(session: Session, shard: int, items: int | None = None) -> Flow[None]:
    """Make the next slice of a growing shard, unless today has room for ``items`` more items; None: in any case.

    Raises:
        FilterFull: no further slice can be made.
    """
    (state,) = yield from read_states(session, [shard])
    if items is None or (state.limit is not None and state.limit - state.inserted < items):
        sizing = growing_slice(session.config, state.epoch + 1)
        if sizing is None:
            text = f"it has {len(state.view.slices)} slices and can have no more: make a filter of a larger capacity"
            raise FilterFull(f"{session.where}: {text}")
        new = Slice("today", sizing.units, sizing.slice_bytes)
        try:
            yield from turn(session, Turn(shard, state, secrets.token_hex(8), new, sizing.shard_capacity))
        except RotationConflict:
            log.debug("%s: another process made the next slice", session.where)
    yield from read_states(session, [shard])


def read_states(session: Session, shards: Sequence[int] | None = None) -> Flow[list[ShardState]]:
    """Read the states of shards, by default of all; the session learns their live slices.

    Raises:
        FilterNotFound: the filter, or one of these shards, is gone.
        SliceLost: the ``meta`` of a shard is damaged.
        UriFilterError: a shard is of another format.
    """
    numbers = range(session.config.shards) if shards is None else shards
    states: list[ShardState] = []
    for some in chunked(numbers):
        if states:
            yield REST
        replies = yield from ask(session, *(session.read_meta(shard) for shard in some))
        for shard, reply in zip(some, replies, strict=True):
            meta = to_mapping(reply)
            if meta.get("uid") != session.config.uid or meta.get("phase") == "dropping":
                raise session.not_found(f"it was dropped, or lost {session.keys.shard(shard).meta}")
            check_format(meta, session.where)
            session.learn_view(shard, meta)
            states.append(ShardState.from_meta(meta, session.where))
    return states
