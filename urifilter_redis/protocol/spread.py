"""How shards lie over the masters of a Redis Cluster that was made with an even split of its slots."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect
from collections import Counter
from typing import TYPE_CHECKING

from urifilter_redis.protocol.keys import DEFAULT_PREFIX, SLOTS, FilterKeys, slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["first_slots", "shards_by_master"]


def first_slots(masters: int) -> list[int]:
    """Return the first slot of each master, as ``redis-cli --cluster create`` deals all slots to so many.

    redis-cli adds up in single precision, which moves some slots by one from 78 masters on.

    Raises:
        ValueError: the masters are not 1 to 16,384.
    """
    if not 1 <= masters <= SLOTS:
        raise ValueError(f"nodes are 1 to {SLOTS:,} masters, and not {masters:,}")
    each, cursor = _single(SLOTS / masters), 0.0
    firsts = [0]
    for _ in range(masters - 1):
        last = math.floor(_single(_single(cursor + each) - 1) + 0.5)
        firsts.append(max(last, firsts[-1]) + 1)
        cursor = _single(cursor + each)
    return firsts


def shards_by_master(names: Iterable[str], shards: int, masters: int) -> list[int]:
    """Return the number of shards that each master has of filters with these names.

    Args:
        names: the filters' names, which decide the slots.
        shards: the number of shards of each filter.
        masters: the number of masters.

    Raises:
        ValueError: a name cannot be a filter's, or the masters are not 1 to 16,384.

    Example:
        >>> shards_by_master(["news"], 18, 3)
        [6, 6, 6]
    """
    firsts, found = first_slots(masters), Counter[int]()
    for name in names:
        keys = FilterKeys(DEFAULT_PREFIX, name, shards)
        found.update(bisect(firsts, slot_of(keys.shard(number).meta)) - 1 for number in range(shards))
    return [found[master] for master in range(masters)]


def _single(number: float) -> float:
    """Return the nearest number of single precision."""
    return ctypes.c_float(number).value
