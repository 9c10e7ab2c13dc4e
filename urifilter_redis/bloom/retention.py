"""Retention: periods, the number of items that a slice is made for, and its share of the error rate.

The shares of the tested slices add up to the filter's error rate ε. A slice of a ring of N has ε/N with write newest,
and ε with write all, where one slice is tested. Each of the two slices of a rolling filter has ε/2. Slice i of a
growing filter has 6ε/(π²(i+1)²); these add up to ε over all i (the Basel problem). P. S. Almeida et al., "Scalable
Bloom Filters", 2007, use a geometric series, which falls faster.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from urifilter_redis.bloom.sizing import ANY_SHARDS, SHARDS_LIMIT, Sizing, Slice, fewest_shards, fitting, grown, size

RETENTIONS = ("forever", "growing", "ring", "rolling")

#: The retentions that rotate by time.
TIMED = ("ring", "rolling")

#: Which slices of a ring an item is written to.
WRITES = ("newest", "all")

EXPIRE_AFTER = ("first-seen", "last-seen")

#: Fewest and most slices of a window. All slices of a ring are tested: with 400, a call takes the server 6 ms.
SLICES = {"ring": (2, 400), "rolling": (2, 1000)}

#: Most slices of a growing filter. Every new item is tested in all of them.
GROWN_LIMIT = 100

#: Most bitmaps of a shard. A turn renames all in one script, which takes the server 8 ms at most; and a checkpoint's
#: document describes them, which MongoDB takes up to 16 MB.
BITMAPS_A_SHARD = 900

#: Most bitmaps of a slice of a rolling shard: a build takes some 1.2 s for each, and 0.2 s for each closed slice of it.
BUILT_BITMAPS = 8

#: Fewest shards of a filter that turns by time, if it has as many bitmaps: each turns alone, and its turn needs memory
#: for its next row.
TIMED_SHARDS = 4

#: About the most bytes of a shard on a cluster: while a slot moves to another master, its keys are sent whole.
MOVED_BYTES = 1 << 30

#: A growing filter must be able to hold this many times its first capacity.
LEAST_GROWTH = 20

S = TypeVar("S", bound="Shape")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The settings of a filter that decide its size and its retention.

    Attributes:
        capacity: the number of items in the whole window (growing: in the first slice).
        error_rate: the probability that an unseen item is answered "seen", at capacity, over all slices.
        layout: ``blocked``, ``classic``, ``counting`` (retention ``forever`` only) or ``redisbloom`` (not ``rolling``;
            rings of at most four slices).
        retention: ``forever``, ``growing``, ``ring`` or ``rolling``.
        slices: ring and rolling: the window in periods, from 2 to 1000 (ring: to 400).
        period: ring and rolling: the time between rotations: ``45s``, ``10m``, ``6h``, ``1d``, ``2w``, seconds,
            or a ``timedelta``.
        write: ring: the slices that an item is written to, ``newest`` or ``all``; None: newest.
        expire_after: ring and rolling: the time from which an item's life counts, ``first-seen`` or ``last-seen``;
            None: first-seen.
        period_capacity: ring with write newest: the most items of one period; None: 2 * capacity / slices, but
            capacity with last-seen.
        shards: the number of shards; None: as few as ``placed`` chooses.
    """

    capacity: int
    error_rate: float = 1e-4
    layout: str = "blocked"
    retention: str = "forever"
    slices: int | None = None
    period: str | int | timedelta | None = None
    write: str | None = None
    expire_after: str | None = None
    period_capacity: int | None = None
    shards: int | None = None


def period_of(value: str | int | timedelta) -> str:
    """Return a period as text with the largest unit that divides it: ``24h`` and 86400 are ``1d``.

    Raises:
        ValueError: the value is neither a whole number of seconds nor a number with one of ``s m h d w``, or it is not
            from 1 second to 100 years.

    Example:
        >>> period_of("24h"), period_of(90), period_of(timedelta(days=30))
        ('1d', '90s', '30d')
    """
    text = str(value).strip()
    if isinstance(value, timedelta):
        seconds, rest = divmod(value, timedelta(seconds=1))
        text = "" if rest else str(seconds)
    found = re.fullmatch(r"(\d{1,12})([smhdw]?)", text) if not isinstance(value, bool) else None
    seconds = int(found[1]) * _UNITS[found[2] or "s"] if found else 0
    if not 1 <= seconds <= _LONGEST:
        raise ValueError(f"a period is 45s, 10m, 6h, 1d or 2w, from 1s to 100 years, and not {value!r}")
    unit = next(unit for unit in reversed(_UNITS) if seconds % _UNITS[unit] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def seconds_of(period: str) -> int:
    """Return the seconds of a period as ``period_of`` returns it."""
    return int(period[:-1]) * _UNITS[period[-1]]


def growing_share(error_rate: float, index: int) -> float:
    """Return the share of slice ``index`` (from 0) of a growing filter in the error rate."""
    return 6 * error_rate / (math.pi * (index + 1)) ** 2


def slice_share(settings: Shape, index: int = 0) -> float:
    """Return a slice's share in the error rate; ``index`` counts the slices of a growing filter from 0."""
    if settings.retention == "growing":
        return growing_share(settings.error_rate, index)
    if settings.retention == "rolling":
        return settings.error_rate / 2
    if settings.retention == "ring" and settings.write != "all":
        return settings.error_rate / (settings.slices or 1)
    return settings.error_rate


def slice_capacity(settings: Shape) -> int:
    """Return the number of items, over all shards, that a slice is made for (growing: the first slice)."""
    if settings.retention != "ring" or settings.write == "all":
        return settings.capacity
    if settings.period_capacity is not None:
        return settings.period_capacity
    if settings.expire_after == "last-seen":
        return settings.capacity
    return min(settings.capacity, -(-2 * settings.capacity // (settings.slices or 1)))


def size_first(settings: Shape) -> Sizing:
    """Return the geometry of the slices (growing: of the first slice).

    Raises:
        ValueError: no filter can have these settings; the message names the allowed ones.
    """
    settings, share, segments = placed(settings), slice_share(settings), _most_segments(settings)
    return size(
        slice_capacity(settings), settings.error_rate, settings.layout, settings.shards, share, most_segments=segments
    )


def placed(settings: S, masters: int = 1) -> S:
    """Return settings with their number of shards, if they do not name it: as few as possible.

    A shard has all bitmaps of its slices, in rows. So a filter has one shard, or one for each of the ``masters`` of a
    cluster, but for these: one that turns by time has ``TIMED_SHARDS`` at least; all bitmaps of a shard that turns are
    renamed in one script, and so are few; and a shard on a cluster has ``MOVED_BYTES`` at most.

    Raises:
        ValueError: no filter can have these settings.
    """
    if settings.shards is not None:
        return settings
    most = _most_segments(settings)
    asked = (slice_capacity(settings), slice_share(settings), settings.layout)
    plain = size(asked[0], settings.error_rate, settings.layout, share=asked[1])
    whole = fitting(*asked, 1, SHARDS_LIMIT) or plain
    least = TIMED_SHARDS if settings.retention in TIMED else 1
    if whole.segments <= max(least, masters):
        return replace(settings, shards=whole.segments)
    for number in range(masters, ANY_SHARDS + 1, masters):
        found = fitting(*asked, number, most)
        if found is None or number < least or (masters == 1 and whole.segments % number):
            continue
        if masters == 1 or live_slices(settings) * found.memory <= number * MOVED_BYTES:
            return replace(settings, shards=number)
    return replace(settings, shards=plain.shards)


def _most_segments(settings: Shape) -> int:
    """Return the most bitmaps that a slice of a shard may have."""
    if settings.retention == "rolling":
        return BUILT_BITMAPS
    if settings.retention == "forever":
        return BITMAPS_A_SHARD
    return BITMAPS_A_SHARD // (1 + (settings.slices or GROWN_LIMIT))


def shards_needed(settings: Shape) -> int | None:
    """Return the fewest shards that keep each slice within ``segment_limit``; None if no filter can have so many.

    Raises:
        ValueError: the capacity, the error rate or the layout is impossible.
    """
    return fewest_shards(slice_capacity(settings), settings.error_rate, settings.layout, slice_share(settings))


def growing_slice(config: Shape, index: int) -> Sizing | None:
    """Return the geometry of slice ``index`` (from 0) of a growing filter; None if no such slice can be made.

    Each slice holds twice the items of the one before, until it has the most and largest bitmaps; later slices stay
    there.
    """
    made = grown(size_first(config), index, growing_share(config.error_rate, index)) if index < GROWN_LIMIT else None
    return made if made and (index + 1) * made.slice().segments <= BITMAPS_A_SHARD else None


def check_growth(settings: Shape, first: Sizing) -> None:
    """Check that a growing filter can grow to ``LEAST_GROWTH`` times its first capacity.

    With layout classic, double hashing adds to the error rate (see ``_floor`` in ``sizing``). At low error rates each
    slice therefore holds fewer items than the one before, and all slices together hold only a few times the first.

    Raises:
        ValueError: the filter cannot grow so far.
    """
    if settings.retention != "growing" or settings.layout != "classic":
        return
    made = (grown(first, index, growing_share(settings.error_rate, index)) for index in range(GROWN_LIMIT))
    times = sum(each.shard_capacity for each in made if each) / first.shard_capacity
    if times < LEAST_GROWTH:
        text = f"at {settings.error_rate:g} it cannot grow to more than {times:.1f} times {settings.capacity:,} items"
        raise ValueError(f"layout classic: {text}: take layout blocked or a higher error_rate")


def error_rate_at_capacity(settings: Shape) -> float:
    """Return the expected error rate when every slice holds its capacity (growing: however many slices it has)."""
    if settings.retention == "growing":
        return settings.error_rate
    return size_first(settings).error_rate_at_capacity * (1 if settings.write == "all" else live_slices(settings))


def live_slices(settings: Shape) -> int:
    """Return the number of live slices once the window is full (growing: at first)."""
    return {"ring": settings.slices or 1, "rolling": 2}.get(settings.retention, 1)


def memory(settings: Shape) -> int:
    """Return the bytes that the server allocates for all live slices (growing: for the first slice)."""
    return live_slices(settings) * size_first(settings).memory


def slices_at(config: Shape, first: Slice, epoch: int, *, rotating: bool = False) -> list[Slice]:
    """Return the live slices, oldest first, of a shard in an epoch; an empty list if the shard cannot reach the epoch.

    ``first`` is the shard's first slice; ``rotating`` (rolling) says that the next history is not built yet.
    """
    if config.retention == "rolling":
        names = ["history"] * (epoch > rotating) + ["history_1"] * (rotating and epoch > 0) + ["today"]
        return [replace(first, name=name) for name in names]
    if config.retention == "growing":
        sizes = [growing_slice(config, index) for index in range(min(epoch, GROWN_LIMIT) + 1)]
        made = [each.slice(_name(epoch - n)) for n, each in enumerate(sizes) if each]
        return made if len(made) == epoch + 1 else []
    if config.retention == "forever":
        return [replace(first, name="today")] if not epoch else []
    live = min(epoch + 1, config.slices or 1)
    return [replace(first, name=_name(age)) for age in range(live - 1, -1, -1)]


def _name(age: int) -> str:
    return f"history_{age}" if age else "today"
