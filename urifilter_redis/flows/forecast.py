"""When a filter will be full, if items go on coming as they do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from urifilter_redis.bloom.retention import seconds_of

if TYPE_CHECKING:
    from urifilter_redis.flows.info import FilterInfo

__all__ = ["full_in"]


def full_in(info: FilterInfo, speed: float | None, now: float) -> float | None:
    """Return the seconds until a filter, or a slice of it, holds more than its capacity.

    Items of a ring or rolling filter expire meanwhile: each rotation is taken to come when it is due.

    Args:
        info: the filter's state.
        speed: new items a second; None: unknown.
        now: the server's time, seconds since 1970.

    Returns:
        The seconds; 0 if that is so now; None if it will not be so, or the speed is unknown. A growing filter is never
        full in this sense.
    """
    if info.retention == "growing" or not speed:
        return 0.0 if info.over_capacity else None
    if info.over_capacity:
        return 0.0
    if info.next_rotation is None or not info.period or not info.slices:
        return _until(info.capacity - info.inserted, speed)
    return _in_turns(info, speed, max(0.0, info.next_rotation - now), seconds_of(info.period), info.slices)


def _until(items: float, speed: float) -> float:
    return max(0.0, items) / speed


def _in_turns(info: FilterInfo, speed: float, left: float, period: float, window: int) -> float | None:
    """Go through the rotations until the window is full of items that came at this speed."""
    today, older = _held(info)
    whole = info.capacity if info.expire_after == "first-seen" or info.write == "all" else math.inf
    passed = 0.0
    for _ in range(window + 1):
        until = min(_until(info.live_slices[0].capacity - today, speed), _until(whole - today - sum(older), speed))
        if until <= left:
            return passed + until
        passed += left
        older = [today + speed * left, *older][: window - 1]
        today, left = 0.0, period
    return None


def _held(info: FilterInfo) -> tuple[float, list[float]]:
    """Return the items of today, and of each earlier period that has not expired, newest first.

    Rolling merges the earlier periods: its items are taken to have come evenly.
    """
    counts = [float(each.inserted) for each in info.live_slices]
    if info.write == "all":  # each slice has the items of all newer ones, too
        counts = [each - newer for each, newer in zip(counts, [0.0, *counts], strict=False)]
    today, *older = counts
    if info.retention == "rolling" and info.slices:
        periods = max(1, min(info.epoch, info.slices - 1))
        older = [sum(older) / periods] * periods
    return today, older
