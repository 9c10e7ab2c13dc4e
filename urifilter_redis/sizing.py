"""Geometry: how many bits, blocks and shards a filter needs, and what error rate it then has.

Sources: B. H. Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970 (classic);
F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007 (blocked);
P. C. Dillinger, P. Manolios, "Bloom Filters in Probabilistic Verification", 2004 (the floor of double hashing).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

__all__ = [
    "BLOCKED_K",
    "LAYOUTS",
    "SHARDS_LIMIT",
    "SLICE_LIMIT",
    "Sizing",
    "blocked_bits_per_item",
    "blocked_error_rate",
    "classic_bits",
    "classic_error_rate",
    "classic_k",
    "error_rate_from_fill",
    "size",
    "slice_bytes",
]

LAYOUTS = ("blocked", "classic")

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
#: A larger k is taken if it saves more than this share of the bits.
_WORTH_A_LARGER_K = 0.05
#: Bytes around a string (sds header and zero byte), around one of 64 KiB or more, and of its key and object.
_HEADER, _LONG, _LONG_HEADER = 6, 2**16, 10
_KEY_AND_OBJECT = 88
#: Bytes up to which jemalloc's classes are 16 apart.
_SMALL_CLASSES = 128
#: Steps of the numeric integral of ``wrongly_skipped``.
_STEPS = 200


def classic_bits(capacity: float, error_rate: float) -> int:
    """Return m, the bits for n items: n ln(1/e) / ln²2 (Bloom), but at least sqrt(20 n / e).

    Double hashing has an error floor near n/m² (Dillinger and Manolios); the second term keeps it at 5 % of e.
    """
    ideal = math.ceil(-capacity * math.log(error_rate) / math.log(2) ** 2)
    return max(ideal, math.ceil(math.sqrt(20 * capacity / error_rate)))


def classic_k(bits: int, capacity: float, error_rate: float) -> int:
    """Return the number of offsets: m/n ln 2 has the lowest error rate; more than log2(1/e) are never needed.

    The second term is the smaller for small filters, which are larger than Bloom's formula asks for.
    """
    return max(1, min(round(bits / capacity * math.log(2)), math.ceil(-math.log2(error_rate))))


def classic_error_rate(k: int, bits_per_item: float) -> float:
    """Return (1 - exp(-k n/m))^k, given m/n."""
    return (-math.expm1(-k / bits_per_item)) ** k


def blocked_error_rate(k: int, bits_per_item: float) -> float:
    """Return the error rate of blocks of k words of 32 bits, one bit a word an item.

    The items of a block are Poisson with mean 32 k / c; i of them leave a bit unset with (31/32)^i.
    """
    return _blocked_rate(k, _WORD_BITS * k / bits_per_item)


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


def error_rate_from_fill(layout: str, k: int, fill: float) -> float:
    """Return the error rate of a bitmap of which the share ``fill`` is set.

    classic: p^k. blocked: items a block are -32 ln(1-p), put into the sum of ``blocked_error_rate``; p^k would be
    several times too low, because some blocks are fuller than others.
    """
    if fill >= 1:
        return 1.0
    if layout == "classic":
        return fill**k
    return _blocked_rate(k, -_WORD_BITS * math.log1p(-fill))


def slice_bytes(layout: str, k: int, units: int) -> int:
    """Return the bytes of a bitmap of ``units`` blocks (blocked) or bits (classic)."""
    return units * 4 * k if layout == "blocked" else (units + 7) // 8


@dataclass(frozen=True, slots=True)
class Sizing:
    """The geometry of a filter.

    Attributes:
        layout: ``blocked`` or ``classic``.
        capacity: items over the whole filter.
        error_rate: what was asked for, at capacity.
        shards: how many.
        shard_capacity: items that one shard is sized for.
        k: offsets an item.
        units: blocks (blocked) or bits (classic) of a shard's bitmap.
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
        return slice_bytes(self.layout, self.k, self.units)

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
        bits = 8 * self.slice_bytes * self.shards / items
        return (blocked_error_rate if self.layout == "blocked" else classic_error_rate)(self.k, bits)

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


def size(capacity: int, error_rate: float = 1e-4, layout: str = "blocked", shards: int | None = None) -> Sizing:
    """Return the geometry of a filter.

    Args:
        capacity: items over the whole filter.
        error_rate: at capacity.
        layout: ``blocked`` or ``classic``.
        shards: 1 to 4096, above 64 a power of two; None: the fewest whose bitmaps are within ``SLICE_LIMIT``.

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
    fewest = _fewest_shards(capacity, error_rate, layout)
    if fewest is None:
        raise ValueError(
            f"{SHARDS_LIMIT} shards are too few for that many items at {error_rate:g}: "
            "take a lower capacity, a higher error_rate, or several filters"
        )
    if shards is not None and shards < fewest:
        raise ValueError(f"{shards} shards are too few for {capacity:,} items at {error_rate:g}: {fewest} are needed")
    return _sized(capacity, error_rate, layout, shards or fewest)


def allocated(length: int) -> int:
    """Return what MEMORY USAGE says of a string of ``length`` bytes, on a server built with jemalloc (most are).

    It is jemalloc's size class, of which there are four to each doubling, for the string with its header and a
    final zero byte; and the value's object and the key. Within 1.2 % from 1 KiB up. A server built with the C
    library's allocator (the embedded one) has no such classes and may need up to a fifth less.
    """
    wanted = length + (_HEADER if length < _LONG else _LONG_HEADER)
    step = 16 if wanted <= _SMALL_CLASSES else 2 ** ((wanted - 1).bit_length() - 3)
    return -(-wanted // step) * step + _KEY_AND_OBJECT


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
    mean = capacity / shards
    shard_capacity = capacity if shards == 1 else math.ceil(mean + 3 * math.sqrt(mean))
    if layout == "classic":
        units = classic_bits(shard_capacity, error_rate)
        k = classic_k(units, shard_capacity, error_rate)
        return Sizing(layout, capacity, error_rate, shards, shard_capacity, k, units)
    k, bits = _blocked_k(error_rate)
    blocks = math.ceil(shard_capacity * bits / (_WORD_BITS * k))
    return Sizing(layout, capacity, error_rate, shards, shard_capacity, k, blocks)


@cache
def _blocked_k(error_rate: float) -> tuple[int, float]:
    """Return the smallest k within 5 % of the fewest bits an item, and its bits."""
    bits = {k: blocked_bits_per_item(k, error_rate) for k in BLOCKED_K}
    enough = min(bits.values()) * (1 + _WORTH_A_LARGER_K)
    k = next(k for k in BLOCKED_K if bits[k] <= enough)
    return k, bits[k]


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
