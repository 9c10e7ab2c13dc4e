"""Geometry: how many bits, blocks and shards a filter needs, and what error rate it then has.

Sources: B. H. Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970 (classic);
F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007 (blocked);
P. C. Dillinger, P. Manolios, "Bloom Filters in Probabilistic Verification", 2004 (the floor of double hashing).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BLOCKED_K",
    "LAYOUTS",
    "SHARDS_LIMIT",
    "SLICE_LIMIT",
    "Sizing",
    "Slice",
    "blocked_bits_per_item",
    "blocked_error_rate",
    "bytes_of",
    "classic_bits",
    "classic_error_rate",
    "classic_k",
    "error_rate_from_fill",
    "grown",
    "items_from_fill",
    "shard_capacity",
    "size",
    "units_within",
]

LAYOUTS = ("blocked", "classic", "counting")

#: Bits of a cell: what an offset addresses.
COUNTER_BITS = 4

#: Words a block: what the blocked scripts are made for.
BLOCKED_K = (8, 12, 16)

#: Bytes; allocating so many takes a server 7 to 8 ms. The 64 bytes keep it out of the allocator's next class.
SLICE_LIMIT = 16 * 2**20 - 64

SHARDS_LIMIT = 4096

#: Shards above which only powers of two are allowed: 12 bits modulo another number fall unevenly.
ANY_SHARDS = 64

#: The error rates that can be asked for. Below, 128-bit digests and 52-bit offsets are no longer the smaller error.
ERROR_RATES = (1e-9, 0.5)

_WORD_BITS = 32
_WORTH_A_LARGER_K = 0.05  # it is taken if it saves more than this share of the bits
#: Bytes around a string (sds header and zero byte), around one of 64 KiB or more, and of its key and object.
_HEADER, _LONG, _LONG_HEADER = 6, 2**16, 10
_KEY_AND_OBJECT = 88
_SMALL_CLASSES = 128  # bytes up to which jemalloc's classes are 16 apart
#: Items that a grown slice must hold to be worth making, unless the first one held fewer.
_FEWEST_GROWN = 1000
_STEPS = 200  # of the numeric integral of ``wrongly_skipped``


@cache
def classic_bits(capacity: int, error_rate: float) -> int:
    """Return m, the fewest bits with which n items have the error rate, the floor of double hashing included."""
    return _fewest(lambda bits: _classic_rate(classic_k(bits, capacity, error_rate), bits, capacity) <= error_rate)


def classic_k(bits: int, capacity: float, error_rate: float) -> int:
    """Return the number of offsets: m/n ln 2 has the lowest error rate; more than log2(1/e) are never needed."""
    return max(1, min(round(bits / capacity * math.log(2)), math.ceil(-math.log2(error_rate))))


def classic_error_rate(k: int, bits_per_item: float) -> float:
    """Return (1 - exp(-k n/m))^k, given m/n."""
    return (-math.expm1(-k / bits_per_item)) ** k


def blocked_error_rate(k: int, bits_per_item: float) -> float:
    """Return the error rate of blocks of k words of 32 bits, one bit a word an item.

    The items of a block are Poisson with mean 32 k / c; i of them leave a bit unset with (31/32)^i.
    """
    return _blocked_rate(k, _WORD_BITS * k / bits_per_item)


@cache
def blocked_bits_per_item(k: int, error_rate: float) -> float:
    """Return c such that ``blocked_error_rate(k, c) == error_rate``, by bisection; inf if there is none."""
    low, high = 0.0, 1.0
    while blocked_error_rate(k, high) > error_rate:
        low, high = high, 2 * high
        if high > 2**20:
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if blocked_error_rate(k, middle) > error_rate else (low, middle)
    return high


def error_rate_from_fill(layout: str, k: int, units: int, fill: float) -> float:
    """Return the error rate of a bitmap of which the share ``fill`` is set (counting: counters over 0).

    classic, counting: p^k and the floor of double hashing. blocked: items a block are -32 ln(1-p), put into the sum of
    ``blocked_error_rate``; p^k would be several times too low, because some blocks are fuller than others.
    """
    if fill >= 1:
        return 1.0
    if layout != "blocked":
        return min(1.0, fill**k + _floor(items_from_fill(layout, k, units, fill), units))
    return _blocked_rate(k, -_WORD_BITS * math.log1p(-fill))


def items_from_fill(layout: str, k: int, units: int, fill: float) -> float:
    """Return how many items make the share ``fill`` of a bitmap: -m/k ln(1-p), with m = 32 k units for blocked.

    Source: S. J. Swamidass, P. Baldi, "Mathematical Correction for Fingerprint Similarity Measures", 2007.
    """
    cells = units * _WORD_BITS * k if layout == "blocked" else units
    return math.inf if fill >= 1 else -cells / k * math.log1p(-fill)


def bytes_of(layout: str, k: int, units: int) -> int:
    """Return the bytes of a bitmap of ``units`` blocks (blocked), bits (classic) or counters (counting)."""
    if layout == "blocked":
        return units * 4 * k
    return (units + 7) // 8 if layout == "classic" else (units * COUNTER_BITS + 7) // 8


def units_within(layout: str, k: int, size: int) -> int:
    """Return the most units of a bitmap of at most ``size`` bytes."""
    return size // (4 * k) if layout == "blocked" else 8 * size // (1 if layout == "classic" else COUNTER_BITS)


@dataclass(frozen=True, slots=True)
class Slice:
    """One live slice of a shard; as text it is an entry of ``slices`` in ``meta``.

    Attributes:
        name: ``today`` …, the end of its key.
        units: blocks (blocked), bits (classic) or counters (counting).
        size: bytes.
    """

    name: str
    units: int
    size: int

    def __str__(self) -> str:
        return f"{self.name}:{self.units}:{self.size}"


@dataclass(frozen=True, slots=True)
class Sizing:
    """The geometry of a slice.

    Attributes:
        layout: ``blocked``, ``classic`` or ``counting``.
        capacity: items over all shards.
        error_rate: what was asked for, at capacity.
        shards: how many.
        shard_capacity: items that one shard is sized for.
        k: offsets an item.
        units: blocks (blocked), bits (classic) or counters (counting) of a shard's bitmap.
    """

    layout: str
    capacity: int
    error_rate: float
    shards: int
    shard_capacity: int
    k: int
    units: int

    @property
    def slice_bytes(self) -> int:
        """Bytes of one shard's bitmap."""
        return bytes_of(self.layout, self.k, self.units)

    @property
    def bits_per_item(self) -> float:
        """Bits of all bitmaps an item at capacity."""
        return 8 * self.slice_bytes * self.shards / self.capacity

    @property
    def memory(self) -> int:
        """Bytes that the server allocates for all bitmaps, as MEMORY USAGE counts them."""
        return self.shards * allocated(self.slice_bytes)

    def error_rate_at(self, items: float) -> float:
        """Return the expected error rate with so many items in the filter."""
        if not items:
            return 0.0
        if self.layout == "blocked":
            return blocked_error_rate(self.k, 8 * self.slice_bytes * self.shards / items)
        return min(1.0, _classic_rate(self.k, self.units, items / self.shards))

    @property
    def error_rate_at_capacity(self) -> float:
        """The expected error rate when the filter holds its capacity."""
        return self.error_rate_at(self.capacity)

    @property
    def wrongly_skipped(self) -> float:
        """Items wrongly taken for seen on the way from empty to capacity: the integral of the error rate."""
        step = self.capacity / _STEPS
        inner = math.fsum(self.error_rate_at(step * i) for i in range(1, _STEPS))
        return step * (inner + self.error_rate_at_capacity / 2)


def size(
    capacity: int,
    error_rate: float = 1e-4,
    layout: str = "blocked",
    shards: int | None = None,
    share: float | None = None,
) -> Sizing:
    """Return the geometry of a slice.

    Args:
        capacity: items over all shards.
        error_rate: at capacity, of the whole filter.
        layout: ``blocked``, ``classic`` or ``counting``.
        shards: 1 to 4096, above 64 a power of two; None: the fewest whose bitmaps are within ``SLICE_LIMIT``.
        share: what this slice may add to the error rate; None: all of it.

    Raises:
        ValueError: that cannot be had; the message says what can.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is one of {', '.join(LAYOUTS)} and not {layout!r}")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ValueError(f"capacity is a whole number from 1 up and not {capacity!r}")
    if not ERROR_RATES[0] <= error_rate <= ERROR_RATES[1]:
        raise ValueError(f"error_rate is from {ERROR_RATES[0]:g} to {ERROR_RATES[1]:g} and not {error_rate!r}")
    if shards is not None and not _allowed(shards):
        raise ValueError(f"shards are 1 to {SHARDS_LIMIT}, above {ANY_SHARDS} a power of two, and not {shards!r}")
    rate = error_rate if share is None else share
    fewest = _fewest_shards(capacity, rate, layout)
    if fewest is None:
        raise ValueError(
            f"{SHARDS_LIMIT} shards are too few for that many items at {rate:.3g}: "
            "take a lower capacity, a higher error_rate, or several filters"
        )
    if shards is not None and shards < fewest:
        raise ValueError(f"{shards} shards are too few for {capacity:,} items at {rate:.3g}: {fewest} are needed")
    return _sized(capacity, rate, layout, shards or fewest)


def grown(first: Sizing, index: int, share: float) -> Sizing | None:
    """Return the geometry of a later slice: 2^index times the items of the first, or what fits; None if nothing does.

    Args:
        first: the geometry of slice 0; layout, k and shards stay.
        index: of the slice, from 0.
        share: what it may add to the error rate.
    """
    if index == 0:
        return first
    layout, k = first.layout, first.k
    most = units_within(layout, k, SLICE_LIMIT)
    capacity = min(first.shard_capacity * 2**index, _items_within(layout, k, most, share))
    if capacity < min(first.shard_capacity, _FEWEST_GROWN):
        return None
    return Sizing(
        layout, capacity * first.shards, share, first.shards, capacity, k, _units_for(layout, k, capacity, share)
    )


def allocated(length: int) -> int:
    """Return what MEMORY USAGE says of a string of ``length`` bytes, on a server built with jemalloc (most are).

    It is jemalloc's size class, of which there are four to each doubling, for the string with its header and a
    final zero byte; and the value's object and the key. Within 1.2 % from 1 KiB up. A server built with the C
    library's allocator (the embedded one) has no such classes and may need up to a fifth less.
    """
    wanted = length + (_HEADER if length < _LONG else _LONG_HEADER)
    step = 16 if wanted <= _SMALL_CLASSES else 2 ** ((wanted - 1).bit_length() - 3)
    return -(-wanted // step) * step + _KEY_AND_OBJECT


def shard_capacity(capacity: int, shards: int) -> int:
    """Return the items that one of so many shards is sized for: the mean and three standard deviations."""
    mean = capacity / shards
    return capacity if shards == 1 else math.ceil(mean + 3 * math.sqrt(mean))


def _allowed(shards: object) -> bool:
    if isinstance(shards, bool) or not isinstance(shards, int):
        return False
    return 1 <= shards <= SHARDS_LIMIT and (shards <= ANY_SHARDS or shards & (shards - 1) == 0)


def _fewest_shards(capacity: int, error_rate: float, layout: str) -> int | None:
    if capacity > SHARDS_LIMIT * 8 * SLICE_LIMIT:  # no layout has less than a bit an item
        return None
    for shards in filter(_allowed, range(1, SHARDS_LIMIT + 1)):
        if _sized(capacity, error_rate, layout, shards).slice_bytes <= SLICE_LIMIT:
            return shards
    return None


def _sized(capacity: int, error_rate: float, layout: str, shards: int) -> Sizing:
    items = shard_capacity(capacity, shards)
    if layout != "blocked":
        bits = classic_bits(items, error_rate)
        return Sizing(layout, capacity, error_rate, shards, items, classic_k(bits, items, error_rate), bits)
    k = _blocked_k(error_rate)
    return Sizing(layout, capacity, error_rate, shards, items, k, _units_for(layout, k, items, error_rate))


@cache
def _units_for(layout: str, k: int, items: int, share: float) -> int:
    """Return the fewest units with which so many items have the error rate ``share``."""
    if layout == "blocked":
        return math.ceil(items * blocked_bits_per_item(k, share) / (_WORD_BITS * k))
    return _fewest(lambda units: _classic_rate(k, units, items) <= share)


@cache
def _items_within(layout: str, k: int, units: int, share: float) -> int:
    """Return the most items with which so many units have at most the error rate ``share``."""
    if layout == "blocked":
        return int(units * _WORD_BITS * k / blocked_bits_per_item(k, share))
    return _fewest(lambda items: _classic_rate(k, units, items) > share) - 1


def _floor(items: float, cells: int) -> float:
    """Return what double hashing adds to the error rate of classic and counting, however many offsets an item has."""
    return 4 * items / cells**2


def _classic_rate(k: int, units: int, items: float) -> float:
    return classic_error_rate(k, units / items) + _floor(items, units)


def _fewest(enough: Callable[[int], bool]) -> int:
    """Return the least number from 1 up that is enough, as all above it are."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@cache
def _blocked_k(error_rate: float) -> int:
    """Return the smallest k within 5 % of the fewest bits an item."""
    bits = {k: blocked_bits_per_item(k, error_rate) for k in BLOCKED_K}
    enough = min(bits.values()) * (1 + _WORTH_A_LARGER_K)
    return next(k for k in BLOCKED_K if bits[k] <= enough)


def _blocked_rate(k: int, mean: float) -> float:
    """Sum over the items i of a block: Poisson(i; mean) (1 - (31/32)^i)^k."""
    spread = 12 * math.sqrt(mean) + 40
    first, last = max(1, int(mean - spread)), int(mean + spread)
    log_mean = math.log(mean) if mean > 0 else -math.inf
    unset = math.log(1 - 1 / _WORD_BITS)
    return math.fsum(
        math.exp(i * log_mean - mean - math.lgamma(i + 1)) * (-math.expm1(i * unset)) ** k
        for i in range(first, last + 1)
    )
