"""The costs of a filter in server time, from the measured figures of a shard: calls, rotations, checkpoints.

The figures are processor time, which a server has one core for, and are rounded up. ``COMMAND`` measures them all, and
``MACHINE`` is where it ran. Other machines have other figures: ratios and growth are what carries over.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass

from urifilter_redis.bloom.retention import TIMED, Shape, live_slices, memory, size_first
from urifilter_redis.bloom.sizing import REDISBLOOM, most_grown, segment_limit

COMMAND = "python -m bench shard --server redis"
MACHINE = "Redis 7.0 on one core of a virtual machine (AMD EPYC of 2022, 2.6 GHz) that other work kept busy"

#: Microseconds of a call without its items, by the live slices that the call names.
A_CALL = {1: 17, 2: 18, 4: 21, 30: 59}

#: Microseconds of each bitmap more of a slice that a call names, with what its items cost more then.
A_BITMAP = 2.9

#: Microseconds of an item more, with layout redisbloom and a call that names several segments of a slice: the script
#: puts the items into the order of these.
AN_ORDERED_ITEM = 0.7

#: Microseconds of an item that was seen in the newest slice.
SEEN = {"blocked": 2.8, "classic": 13, "counting": 13, "redisbloom": 0.9}

#: Microseconds of a new item that is written to the newest slice, by the live slices that it is tested in.
NEW = {
    "blocked": {1: 3.9, 2: 7.4, 4: 11.1, 30: 65},
    "classic": {1: 17.5, 2: 30.5, 4: 48.5},
    "counting": {1: 25.5},
    "redisbloom": {1: 1.6, 4: 2.5},
}

#: Microseconds of a new item that is written to all slices and tested in one, by the live slices (ring, write all).
NEW_IN_ALL = {"blocked": {1: 3.9, 4: 16.2, 30: 112}, "classic": {1: 17.5, 4: 77.5}}

#: Milliseconds to allocate and turn a shard whose bitmaps have ``SEGMENT_LIMIT`` bytes. Allocating takes nearly all.
TURN = 10.5

#: Milliseconds of the longest command about a slice of layout redisbloom of ``MODULE_LIMIT`` bytes: the first calls
#: that write to it, because the module allocates lazily.
TURN_OF_MODULE = 13.0

#: Milliseconds a MiB of a bitmap to rotate a shard of a rolling filter: for the turn and for the archive, and for each
#: other closed slice that the next history is built from. The program that rotates takes most of it.
BUILD, BUILD_SLICE = 66, 12.5

#: Milliseconds a MiB of the bitmaps that a checkpoint writes into a folder; a slow disk or network comes on top.
CHECKPOINT = 10

#: A packed slice takes at most so many times the entropy of its bits (``python -m bench packing``).
PACKED = 1.05

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class InsertCost:
    """The cost of inserting lists of items, all of one length.

    Attributes:
        items: the items of a list.
        calls: the calls of scripts into which a list is cut, on average.
        new: microseconds of server time an item, if all are new.
        seen: the same, if all were seen in the newest slice.
    """

    items: int
    calls: float
    new: float
    seen: float


@dataclass(frozen=True, slots=True)
class RotationCost:
    """The cost of a rotation (growing: of making the next slice).

    Attributes:
        pause: the longest time for which a server serves no other call, seconds.
        shard: the time of a shard, seconds.
        filter: the time of all shards, one after the other, seconds.
    """

    pause: float
    shard: float
    filter: float


def insert_cost(settings: Shape, items: int, most: int) -> InsertCost:
    """Return the cost of lists of so many items.

    The items of a list go to the shards at random, and each shard that gets any is called at least once. So the more
    shards, the more calls, and the fewer items share the cost of one. A call has ``most`` items at most. It names the
    bitmaps of its items; the cost of a call has one a slice in it.
    """
    first, live = size_first(settings), live_slices(settings)
    reached = _reached(first.shards, items)
    called = max(reached, items / most)
    table = NEW_IN_ALL if settings.write == "all" else NEW
    named = A_BITMAP * live * (_reached(first.segments, items) - reached)
    share = (called * _between(A_CALL, live) + named) / items
    if settings.layout == REDISBLOOM and named > 0:
        share += AN_ORDERED_ITEM
    return InsertCost(items, called, share + _between(table[settings.layout], live), share + SEEN[settings.layout])


def _reached(parts: int, items: int) -> float:
    """Return how many of equal parts some items reach, on average."""
    return -parts * math.expm1(items * math.log1p(-1 / parts)) if parts > 1 else 1.0


def rotation_cost(settings: Shape) -> RotationCost | None:
    """Return the cost of a rotation; None if the filter never rotates."""
    if settings.retention == "forever":
        return None
    first = size_first(settings)
    limit = segment_limit(settings.layout)
    size, segments = first.segment_bytes, first.segments
    if settings.retention == "growing":  # its later slices have the largest bitmaps, and the most
        size, segments = limit, most_grown(first)
    pause = (TURN_OF_MODULE if settings.layout == REDISBLOOM else TURN) / 1000 * size / limit
    shard = pause * segments / first.shards
    if settings.retention == "rolling":
        others = max(0, (settings.slices or 0) - 2)
        shard += (BUILD + BUILD_SLICE * others) / 1000 * first.slice().whole.size / _MIB
    return RotationCost(pause, shard, shard * first.shards)


def checkpoint_seconds(size: int) -> float:
    """Return the seconds that a checkpoint takes for bitmaps of ``size`` bytes."""
    return CHECKPOINT / 1000 * size / _MIB


def closed_bytes(settings: Shape) -> int:
    """Return the bytes of a shard's closed slices, packed, if the filter is rolling and keeps them in Redis, else 0.

    Each closed slice has an equal part of the window's items; about so many bits of it are set.
    """
    if settings.retention != "rolling" or settings.slices is None:
        return 0
    first = size_first(settings)
    set_bits, row = first.shard_capacity / settings.slices * first.k, first.slice().whole.size
    fill = -math.expm1(-set_bits / (8 * row))
    entropy = -(fill * math.log2(fill) + (1 - fill) * math.log2(1 - fill))
    return math.ceil((settings.slices - 1) * row * min(1.0, PACKED * entropy))


def memory_when_full(settings: Shape, *, closed: bool = True) -> int:
    """Return the most bytes that a filter takes once its window is full (growing: its first slice).

    These are all live slices, the bitmap that each shard in turn has more while it rotates, and, if ``closed``, the
    closed slices that a rolling filter keeps in Redis.
    """
    first = size_first(settings)
    turning = first.memory // first.shards if settings.retention in TIMED else 0
    return memory(settings) + turning + (first.shards * closed_bytes(settings) if closed else 0)


def _between(measured: Mapping[int, float], number: int) -> float:
    """Return the figure for a number: on the line through the measured ones on both sides, or through the last two."""
    known = sorted(measured)
    if number in measured or len(known) == 1:
        return measured.get(number, measured[known[0]])
    at = min(bisect(known, number), len(known) - 1)
    low, high = known[at - 1], known[at]
    return measured[low] + (measured[high] - measured[low]) * (number - low) / (high - low)
