"""The schedule: when a rotation is due, and which shards turn in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import seconds_of
from urifilter_redis.flows.turn import Left, left_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from urifilter_redis.protocol.meta import ShardState

__all__ = ["Due", "next_due", "shard_0_last", "shards_due"]


def next_due(period: str, states: Sequence[ShardState], now: int) -> float:
    """Return the server time at which the next rotation is due, seconds since 1970.

    It is a period after the last shard has turned, so that nothing expires early, however late some shards turned. A
    shard that is behind the others is due a period after its own last turn. If a shard's turn lies in the future,
    because the server's clock was ahead, it counts as ``now`` (server time, ms): its items expire late, never early.
    """
    top = max(state.epoch for state in states)
    behind = [state.opened_by(now) for state in states if state.epoch < top]
    opened = min(behind) if behind else max(state.opened_by(now) for state in states)
    return opened / 1000 + seconds_of(period)


@dataclass(frozen=True, slots=True)
class Due:
    """A rotation because a period is over. Epochs whose periods were missed as a whole are passed over.

    Attributes:
        period: ms.
        now: server time at which the states of the shards were read, ms.
        missed: whether epochs may be passed over: not while server and client disagree about the time.
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
        """Return the rotation that is due.

        Args:
            period: between rotations, as ``period_of`` returns it.
            states: of all shards.
            now: server time, ms.
            clock: this machine's time, ms.
        """
        length, top = 1000 * seconds_of(period), max(state.epoch for state in states)
        missed = abs(now - clock) <= length / 2
        if any(state.epoch < top for state in states):  # those that have turned say where the others turn to
            opened = max(state.opened_by(now) for state in states if state.epoch == top)
            return cls(length, now, missed, shards_due(period, states, now), opened if missed else 0)
        closes = max(state.closes(now, length) for state in states)
        more = max(0, now - closes) // length if missed else 0
        opened = closes + more * length if missed else 0
        return cls(length, now, missed, shards_due(period, states, now, 1 + more), opened)

    def by(self, state: ShardState, last: int) -> int:
        """Return how many epochs a shard goes forward that may leave those up to ``last``: as its times allow."""
        own = max(0, self.now - state.closes(self.now, self.period)) // self.period if self.missed else 0
        return 1 + min(last - state.epoch, own)


def shards_due(period: str, states: Sequence[ShardState], now: int, by: int = 1) -> dict[int, int]:
    """Return the shards whose turn is due or unfinished, shard 0 last, each with the last epoch that it may leave.

    Args:
        period: between rotations, as ``period_of`` returns it.
        states: of all shards.
        now: server time, ms.
        by: the epochs by which a filter goes forward whose shards are all in one.
    """
    top = max(state.epoch for state in states)
    unfinished = {shard: state.epoch - 1 for shard, state in enumerate(states) if left_of(state) is not Left.NONE}
    behind = {shard: state for shard, state in enumerate(states) if state.epoch < top and shard not in unfinished}
    overdue = {shard: top - 1 for shard, state in behind.items() if _is_due(period, [state], now)}
    if not unfinished and not behind and _is_due(period, states, now):
        overdue = dict.fromkeys(range(len(states)), top + by - 1)
    planned = unfinished | overdue
    return {shard: planned[shard] for shard in shard_0_last(planned)}


def shard_0_last(shards: Iterable[int]) -> list[int]:
    """Return shards with shard 0 at the end: once it has turned, and finished its turn, all shards have."""
    return sorted(shards, key=lambda shard: shard == 0)


def _is_due(period: str, states: Sequence[ShardState], now: int) -> bool:
    return now / 1000 >= next_due(period, states, now)
