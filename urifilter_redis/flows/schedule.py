"""The schedule: when a rotation is due, and which shards turn in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import seconds_of
from urifilter_redis.flows.turn import Left, left_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from urifilter_redis.protocol.meta import ShardState

__all__ = ["next_due", "shard_0_last", "shards_due"]


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


def shards_due(period: str, states: Sequence[ShardState], now: int) -> dict[int, int]:
    """Return the shards whose turn is due or unfinished, shard 0 last, each with the epoch that it leaves by that turn.

    Args:
        period: between rotations, as ``period_of`` returns it.
        states: of all shards.
        now: server time, ms.
    """
    top = max(state.epoch for state in states)
    unfinished = {shard: state.epoch - 1 for shard, state in enumerate(states) if left_of(state) is not Left.NONE}
    behind = {shard: state for shard, state in enumerate(states) if state.epoch < top and shard not in unfinished}
    overdue = {shard: state.epoch for shard, state in behind.items() if _is_due(period, [state], now)}
    if not unfinished and not behind and _is_due(period, states, now):
        overdue = dict.fromkeys(range(len(states)), top)
    planned = unfinished | overdue
    return {shard: planned[shard] for shard in shard_0_last(planned)}


def shard_0_last(shards: Iterable[int]) -> list[int]:
    """Return shards with shard 0 at the end: once it has turned, and finished its turn, all shards have."""
    return sorted(shards, key=lambda shard: shard == 0)


def _is_due(period: str, states: Sequence[ShardState], now: int) -> bool:
    return now / 1000 >= next_due(period, states, now)
