"""One turn of one shard: today is closed, and an empty bitmap becomes today. And which shards must turn, and when.

A shard of a ring or rolling filter turns because a period is over, one of a growing filter because today is full.
"""

from __future__ import annotations

import functools
import logging
import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import growing_slice, seconds_of, slice_share
from urifilter_redis.bloom.sizing import REDISBLOOM, Slice
from urifilter_redis.engine.queries import ask, chunked
from urifilter_redis.engine.steps import REST, Flow
from urifilter_redis.errors import FilterFull, RotationConflict, ServerFull
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.calls import Call
from urifilter_redis.protocol.config import check_format
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage.documents import row_spans

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

log = logging.getLogger("urifilter_redis")


def read_states(session: Session, shards: Sequence[int] | None = None) -> Flow[list[ShardState]]:
    """Read the states of shards, by default of all. The session learns their live slices.

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


def grow(session: Session, shard: int, items: int | None = None) -> Flow[None]:
    """Make the next slice of a growing shard, unless today has room for ``items`` more items. None: in any case.

    Raises:
        FilterFull: no further slice can be made.
        SliceLost: a live bitmap is missing.
    """
    (state,) = yield from read_states(session, [shard])
    if items is None or (state.limit is not None and state.limit - state.inserted < items):
        sizing = growing_slice(session.config, state.epoch + 1)
        if sizing is None:
            text = f"it has {len(state.view.slices)} slices and can have no more: make a filter of a larger capacity"
            raise FilterFull(f"{session.where}: {text}")
        turn = Turn(shard, state, secrets.token_hex(8), sizing.slice(), sizing.shard_capacity)
        try:
            for call in turn.calls(session):
                yield from ask(session, call)
        except ServerFull:
            yield from turn.free(session)
            raise
        except RotationConflict:
            log.debug("%s: another process made the next slice", session.where)
    yield from read_states(session, [shard])


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn to be made.

    Attributes:
        shard: the number of the shard.
        state: the shard's state as it was last read; its uid and epoch fence the turn.
        token: the token of this rotation.
        new: the geometry of the next today.
        limit: growing: the number of items that the next today is for; else 0.
        period: the time that must have passed since the last turn, by the shard's own server, ms; 0: turn in any case.
        by: the number of epochs to go forward.
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

    def calls(self, session: Session) -> Iterator[Call]:
        """Build the calls of the turn: the allocation of each segment of the next today, and the turn itself.

        They are not for one pipeline: an allocation takes the server some ms, and it can serve others between two.
        """
        config, keys = session.config, session.keys.shard(self.shard)
        live = self.state.view.slices
        after = names_after(self.state, config.retention, config.slices, self.by)
        kept = [*live[len(live) + 1 - len(after) :], self.new]
        names = [name for each, slice_ in zip(after, kept, strict=True) for name in replace(slice_, name=each).names]
        gone = [name for each in live if each.name not in after for name in each.names]
        going = sum(each.segments for each in live[: len(live) + 1 - len(after)])
        freed = calls.segments_freed(config.layout)
        away = [f"gone:{self.state.epoch}:{n}" for n in range(1, going + 1)] if going > freed else []
        rate = slice_share(config, self.state.epoch + 1) if config.layout == REDISBLOOM else None

        built = functools.partial(
            calls.turn,
            keys=keys,
            state=self.state,
            token=self.token,
            new=self.new,
            limit=self.limit,
            period=self.period,
            by=self.by,
            opened=self.opened,
            rate=rate,
            names=names + gone + away,
        )
        for number in range(self.new.segments):
            yield built("allocate", number=number)
        yield built("turn")

    def free(self, session: Session) -> Flow[None]:
        """Free the segments that were allocated, because the server has no memory for the others.

        It could not serve any writer before they are gone. If another process is making them too, it does so again.
        """
        row = replace(self.new, name="today_next").names
        for names in chunked(row, calls.segments_freed(session.config.layout)):
            yield from ask(session, ("UNLINK", *map(session.keys.shard(self.shard).slice, names)))
            yield REST


def names_after(state: ShardState, retention: str, window: int | None, by: int = 1) -> list[str]:
    """Return the names of the live slices after the next turn, oldest first. The shard goes ``by`` epochs forward."""
    closed = len(state.view.slices)
    if retention == "rolling":
        return ["history", "history_1", "today"][-(closed + 1) :] if by < (window or math.inf) else ["today"]
    if retention == "ring" and window:
        oldest = state.epoch + by - window + 1
        closed -= sum(epoch < oldest for epoch in (state.epoch, *(each.epoch for each in state.closed)))
        closed = min(closed, window - 1)
    return [f"history_{n}" for n in range(closed, 0, -1)] + ["today"]


class Left(Enum):
    """The next remaining step of a shard's last turn; only rolling filters have others than ``NONE``."""

    #: The turn is finished.
    NONE = auto()
    #: The closed slice must be written to the archive.
    ARCHIVE = auto()
    #: Pieces of the next history must be built.
    BUILD = auto()
    #: The next history is built and must become the history.
    FINISH = auto()


def left_of(state: ShardState) -> Left:
    """Return the next remaining step of a shard's last turn, from its ``meta`` alone."""
    if state.phase != "rotating":
        return Left.NONE
    if state.pieces is None:
        return Left.ARCHIVE
    return Left.BUILD if state.pieces < piece_count(state) else Left.FINISH


def piece_count(state: ShardState) -> int:
    """Return the number of pieces in which a slice of a rolling shard is archived and built."""
    return len(row_spans(state.view.slices[-1]))


@dataclass(frozen=True, slots=True)
class Due:
    """A rotation because a period is over. Epochs whose periods were missed as a whole are passed over.

    Attributes:
        period: ms.
        now: the server time at which the states of the shards were read, ms.
        missed: whether epochs may be passed over; they may not while server and client disagree about the time.
        planned: the shards whose turn is due or unfinished, shard 0 last, each with the last epoch that it may leave.
        opened: the time at which the next today of every shard counts as opened, at the earliest, ms; 0: when it turns.
    """

    period: int
    now: int
    missed: bool
    planned: dict[int, int]
    opened: int

    @classmethod
    def of(cls, period: str, states: Sequence[ShardState], now: int, clock: float) -> Due:
        """Return the rotation that is due at ``now``, the server time; ``clock`` is this machine's time, both in ms."""
        length, top, more = 1000 * seconds_of(period), top_epoch(states), 0
        missed = abs(now - clock) <= length / 2
        if any(state.epoch < top for state in states):  # those that have turned say where the others turn to
            opened = max(state.opened_by(now) for state in states if state.epoch == top)
        else:
            closes = max(state.closes(now, length) for state in states)
            more = max(0, now - closes) // length if missed else 0
            opened = closes + more * length
        return cls(length, now, missed, shards_due(period, states, now, 1 + more), opened if missed else 0)

    def by(self, state: ShardState, last: int) -> int:
        """Return how many epochs a shard goes forward; its times limit them, and ``last``, which it may leave last."""
        own = max(0, self.now - state.closes(self.now, self.period)) // self.period if self.missed else 0
        return 1 + min(last - state.epoch, own)


def shards_due(period: str, states: Sequence[ShardState], now: int, by: int = 1) -> dict[int, int]:
    """Return the shards whose turn is due or unfinished, shard 0 last, each with the last epoch that it may leave.

    If all shards are in one epoch, they go ``by`` epochs forward. ``now`` is server time, ms.
    """
    top = top_epoch(states)
    unfinished = {shard: state.epoch - 1 for shard, state in enumerate(states) if state.phase == "rotating"}
    behind = {shard: state for shard, state in enumerate(states) if state.epoch < top and shard not in unfinished}
    overdue = {shard: top - 1 for shard, state in behind.items() if _is_due(period, [state], now)}
    if not unfinished and not behind and _is_due(period, states, now):
        overdue = dict.fromkeys(range(len(states)), top + by - 1)
    planned = unfinished | overdue
    return {shard: planned[shard] for shard in shard_0_last(planned)}


def next_due(period: str, states: Sequence[ShardState], now: int) -> float:
    """Return the server time at which the next rotation is due, seconds since 1970.

    The time is a period after the last shard has turned, so that nothing expires early, however late some shards
    turned. A shard that is behind the others is due a period after its own last turn. If a shard's turn lies in the
    future, because the server's clock was ahead, it counts as ``now`` (the server time, ms): its items expire late,
    never early.
    """
    top = top_epoch(states)
    behind = [state.opened_by(now) for state in states if state.epoch < top]
    opened = min(behind) if behind else max(state.opened_by(now) for state in states)
    return opened / 1000 + seconds_of(period)


def _is_due(period: str, states: Sequence[ShardState], now: int) -> bool:
    return now / 1000 >= next_due(period, states, now)


def shard_0_last(shards: Iterable[int]) -> list[int]:
    """Return shards with shard 0 at the end. Once it has turned and finished its turn, all shards have."""
    return sorted(shards, key=lambda shard: shard == 0)


def top_epoch(states: Iterable[ShardState]) -> int:
    """Return the highest epoch of some shards."""
    return max(state.epoch for state in states)
