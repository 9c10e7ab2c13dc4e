"""Geometry: the bits, blocks and shards that a filter needs, and its error rate.

Sources: B. H. Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", 1970 (classic);
F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007 (blocked);
P. C. Dillinger, P. Manolios, "Bloom Filters in Probabilistic Verification", 2004 (the floor of double hashing).
The sizes of layout redisbloom are those that the module RedisBloom 2.8 chooses (its function ``bloom_init``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from urifilter_redis.checks import check_among, check_least, is_whole

#: The layout whose slices are Bloom filters of the server's own module, and no bitmaps.
REDISBLOOM = "redisbloom"

LAYOUTS = ("blocked", "classic", "counting", REDISBLOOM)

#: Bits of a counter of layout counting.
COUNTER_BITS = 4

#: The values of k (words of a block) for which the blocked scripts are made.
BLOCKED_K = (8, 12, 16)

#: Most bytes of a bitmap. A server allocates these in 7 to 8 ms. The 64 bytes less keep the string, with its header,
#: within the allocator's size class of 16 MiB.
SEGMENT_LIMIT = 16 * 2**20 - 64

#: Most bytes of a segment of layout redisbloom, a filter of the module. Its removal takes 5 to 10 ms. The module
#: allocates lazily, so the first calls on a filter are the longest, 11 to 15 ms: ``protocol.calls.ITEMS_OF_MODULE``
#: limits them.
MODULE_LIMIT = 64 * 2**20

#: Fewest items for which a slice of layout redisbloom is made. The module makes a filter for 100 where a key is
#: missing, and the scripts tell by the number that such a one is not theirs.
LEAST_RESERVED = 128

#: In a filter of the module with m bits, n items take a share of about 8n/m² of the others for seen, beside the formula
#: for independent bits. Plain double hashing sets a progression of bits, and progressions coincide (measured; for the
#: reasons see Dillinger and Manolios 2004). It counts in small filters at low error rates.
COINCIDENCES = 8

SHARDS_LIMIT = 4096

#: The numbers of bitmaps of a slice, over all shards. They have many divisors, which can be numbers of shards.
ROWS = (
    1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 64, 72, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
)  # fmt: skip

#: More bitmaps than the fewest must save more than this share of the memory: a bitmap takes a class of its allocator.
_WORTH_MORE_BITMAPS = 0.1

#: Above this many shards only powers of two are allowed: another number of ranges of 12 bits spreads items unevenly.
ANY_SHARDS = 64

#: The lowest and highest error rate. At lower ones, collisions of 128-bit digests and 52-bit offsets are no longer
#: negligible.
ERROR_RATES = (1e-9, 0.5)

_WORD_BITS = 32
_LN2, _LN2_SQUARED = 0.693147180559945, 0.480453013918201  # the module's digits: it rounds what comes of them up
_WORTH_A_LARGER_K = 0.05  # a larger k must save more than this share of the bits
#: Bytes around a string (sds header and zero byte), around a string of 64 KiB or more, and of the key and object.
_HEADER, _LONG, _LONG_HEADER = 6, 2**16, 10
_KEY_AND_OBJECT = 88
_SMALL_CLASSES = 128  # bytes up to which jemalloc's classes are 16 apart
#: Most bitmaps of a slice of a growing filter, if its first has fewer: who finds the filter full allocates the next
#: row, in some 10 ms a bitmap.
GROWN_SEGMENTS = 16
#: A further slice of a growing filter is worth making if it holds so many items, or as many as the first slice.
_FEWEST_GROWN = 1000
_STEPS = 200  # steps of the numeric integral of ``wrongly_skipped``


@cache
def classic_bits(capacity: int, error_rate: float) -> int:
    """Return m, the fewest bits that keep ``capacity`` items within the error rate, ``_floor`` included."""
    return _fewest(lambda bits: _classic_rate(classic_k(bits, capacity, error_rate), bits, capacity) <= error_rate)


def classic_k(bits: int, capacity: float, error_rate: float) -> int:
    """Return k, the number of offsets of an item in m = ``bits`` for n = ``capacity`` items.

    k = m/n ln 2 gives the lowest error rate (Bloom 1970); more than log2(1/``error_rate``) offsets are never needed.
    """
    return max(1, min(round(bits / capacity * math.log(2)), math.ceil(-math.log2(error_rate))))


def classic_error_rate(k: int, bits_per_item: float) -> float:
    """Return (1 - exp(-k n/m))^k for m/n = ``bits_per_item`` (Bloom 1970): the error rate without the floor."""
    return (-math.expm1(-k / bits_per_item)) ** k


def blocked_error_rate(k: int, bits_per_item: float) -> float:
    """Return the error rate of layout blocked: a block has k words of 32 bits, and an item sets one bit in each word.

    With c = ``bits_per_item``, the number of items in a block is Poisson distributed with mean 32 k / c. After i
    items a bit is unset with probability (31/32)^i. Source: Putze et al. 2007.
    """
    return _blocked_rate(k, _WORD_BITS * k / bits_per_item)


@cache
def blocked_bits_per_item(k: int, error_rate: float) -> float:
    """Return the bits an item c for which ``blocked_error_rate(k, c) == error_rate``, by bisection.

    The result is infinity if no c up to 2^20 is enough.
    """
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
    """Return the error rate of a bitmap whose share p = ``fill`` of bits is set (counting: of counters over 0).

    For classic and counting it is p^k plus the floor of double hashing. For blocked, the mean number of items in a
    block is -32 ln(1-p), and the sum of ``blocked_error_rate`` gives the rate. p^k would be several times too low
    there, because some blocks are fuller than others.
    """
    if fill >= 1:
        return 1.0
    if layout != "blocked":
        return min(1.0, fill**k + _floor(items_from_fill(layout, k, units, fill), units))
    return _blocked_rate(k, -_WORD_BITS * math.log1p(-fill))


def items_from_fill(layout: str, k: int, units: int, fill: float) -> float:
    """Return how many items fill the share p = ``fill`` of a bitmap of m bits: -m/k ln(1-p).

    m is 32 k units for blocked, else the units. The result is infinity for a full bitmap.

    Source: S. J. Swamidass, P. Baldi, "Mathematical Correction for Fingerprint Similarity Measures", 2007.
    """
    cells = units * _WORD_BITS * k if layout == "blocked" else units
    return math.inf if fill >= 1 else -cells / k * math.log1p(-fill)


def segment_limit(layout: str) -> int:
    """Return the most bytes of a segment of a layout."""
    return MODULE_LIMIT if layout == REDISBLOOM else SEGMENT_LIMIT


def module_rate(items: float, reserved: int, error_rate: float) -> float:
    """Return the error rate of a filter of the module that has ``items`` items; it was reserved for ``reserved``.

    The module sizes a filter for half of the ``error_rate`` that it is asked for. A filter that is full gets another
    beside it, for half of that half, and so on: so all together stay below ``error_rate``, which is what this returns.
    Both leave ``COINCIDENCES`` out, and this counts them.
    """
    if not items:
        return 0.0
    k, bits, within = module_hashes(error_rate), 8 * module_bytes(reserved, error_rate), min(items, reserved)
    rate = classic_error_rate(k, bits / within) + COINCIDENCES * within / bits**2
    return rate if items <= reserved else max(rate, error_rate)


def module_fill(items: float, reserved: int, error_rate: float) -> float:
    """Return the share of the bits that are set in the first filter of a slice, from its number of items.

    The module does not tell it. See ``module_rate``.
    """
    bits = 8 * module_bytes(reserved, error_rate)
    return -math.expm1(-module_hashes(error_rate) * min(items, reserved) / bits)


def module_hashes(error_rate: float) -> int:
    """Return the number of hashes that the module takes for an item."""
    return math.ceil(_LN2 * _module_bits_per_item(error_rate))


def module_bytes(reserved: int, error_rate: float) -> int:
    """Return the bytes of the bitmap that the module makes for ``reserved`` items: whole words of 64 bits."""
    return 8 * math.ceil(int(reserved * _module_bits_per_item(error_rate)) / 64)


def _module_bits_per_item(error_rate: float) -> float:
    return -math.log(error_rate / 2) / _LN2_SQUARED


def bytes_of(layout: str, k: int, units: int) -> int:
    """Return the bytes of a bitmap of ``units`` blocks (blocked), bits (classic) or counters (counting)."""
    if layout == "blocked":
        return units * 4 * k
    return (units + 7) // 8 if layout == "classic" else (units * COUNTER_BITS + 7) // 8


def units_within(layout: str, k: int, size: int) -> int:
    """Return how many units a bitmap of at most ``size`` bytes can have."""
    return size // (4 * k) if layout == "blocked" else 8 * size // (1 if layout == "classic" else COUNTER_BITS)


@dataclass(frozen=True, slots=True)
class Slice:
    """One live slice of a shard, a row of segments; ``str`` makes its entry in the field ``slices`` of ``meta``.

    Attributes:
        name: the end of the key of its first segment: ``today``, ``history`` or ``history_1`` …
        units: the number of blocks (blocked), bits (classic) or counters (counting) of a segment, or of the items that
            it is reserved for (redisbloom).
        size: the bytes of a segment's bitmap.
        segments: the number of segments.

    Example:
        >>> str(Slice("today", 1000, 48_000, 3))
        'today:1000:48000:3'
    """

    name: str
    units: int
    size: int
    segments: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.units}:{self.size}:{self.segments}"

    @property
    def names(self) -> tuple[str, ...]:
        """The ends of the keys of all segments.

        Example:
            >>> Slice("today", 1000, 48_000, 3).names
            ('today', 'today.1', 'today.2')
        """
        return (self.name, *(f"{self.name}.{number}" for number in range(1, self.segments)))

    @property
    def whole(self) -> Slice:
        """The same bits in one segment: what counts bits may take several bitmaps for one."""
        return Slice(self.name, self.units * self.segments, self.size * self.segments)


@dataclass(frozen=True, slots=True)
class Sizing:
    """The geometry of a slice of all shards.

    Attributes:
        layout: one of ``LAYOUTS``.
        capacity: the number of items over all shards.
        error_rate: the wanted error rate at capacity.
        shards: the number of shards.
        segments: the number of bitmaps of the slice, over all shards: a multiple of ``shards``.
        segment_capacity: the number of items that one bitmap is sized for.
        k: the number of offsets of an item.
        units: the blocks (blocked), bits (classic) or counters (counting) of a bitmap; redisbloom: the items that it is
            reserved for.
    """

    layout: str
    capacity: int
    error_rate: float
    shards: int
    segments: int
    segment_capacity: int
    k: int
    units: int

    @property
    def shard_capacity(self) -> int:
        """The number of items that one shard's slice is sized for."""
        return self.segment_capacity * self.segments // self.shards

    def slice(self, name: str = "today") -> Slice:
        """Return one shard's slice of this geometry."""
        return Slice(name, self.units, self.segment_bytes, self.segments // self.shards)

    @property
    def segment_bytes(self) -> int:
        """The bytes of one bitmap."""
        if self.layout == REDISBLOOM:
            return module_bytes(self.units, self.error_rate)
        return bytes_of(self.layout, self.k, self.units)

    @property
    def memory(self) -> int:
        """The bytes that the server allocates for all bitmaps, as MEMORY USAGE counts them."""
        return self.segments * allocated(self.segment_bytes)

    def error_rate_at(self, items: float) -> float:
        """Return the expected error rate when the filter holds ``items`` items."""
        if not items:
            return 0.0
        if self.layout == "blocked":
            return blocked_error_rate(self.k, 8 * self.segment_bytes * self.segments / items)
        if self.layout == REDISBLOOM:
            return module_rate(items / self.segments, self.units, self.error_rate)
        return min(1.0, _classic_rate(self.k, self.units, items / self.segments))

    @property
    def error_rate_at_capacity(self) -> float:
        """The expected error rate when the filter holds its capacity."""
        return self.error_rate_at(self.capacity)

    @property
    def wrongly_skipped(self) -> float:
        """The expected number of new items answered "seen" while the filter fills to capacity.

        It is the integral of the error rate over the items, by the trapezoidal rule.
        """
        step = self.capacity / _STEPS
        inner = math.fsum(self.error_rate_at(step * i) for i in range(1, _STEPS))
        return step * (inner + self.error_rate_at_capacity / 2)


def size(  # noqa: PLR0913 - all of it decides the geometry
    capacity: int,
    error_rate: float = 1e-4,
    layout: str = "blocked",
    shards: int | None = None,
    share: float | None = None,
    *,
    most_segments: int = 1,
) -> Sizing:
    """Return the geometry of a slice.

    Args:
        capacity: the number of items over all shards.
        error_rate: the error rate of the whole filter at capacity.
        layout: one of ``LAYOUTS``.
        shards: from 1 to 4096, above 64 a power of two; None: the fewest whose bitmaps are within ``segment_limit``.
        share: the slice's share in the error rate; None: the whole error rate.
        most_segments: the most bitmaps of a shard's slice. It has as few as are within ``segment_limit``, in a number
            with many divisors; without ``shards`` one.

    Raises:
        ValueError: no slice can have these settings; the message names the allowed ones.

    Example:
        >>> size(1_000_000).memory
        3145816
    """
    if shards is not None and not _allowed(shards):
        raise ValueError(f"shards are 1 to {SHARDS_LIMIT}, above {ANY_SHARDS} a power of two, and not {shards!r}")
    fewest = fewest_shards(capacity, error_rate, layout, share)
    rate = error_rate if share is None else share
    if fewest is None:
        raise ValueError(
            f"{SHARDS_LIMIT} bitmaps are too few for that many items at {rate:.3g}: "
            "take a lower capacity, a higher error_rate, or several filters"
        )
    if shards is None or shards >= fewest:
        return _sized(capacity, rate, layout, shards or fewest)
    if (sizing := fitting(capacity, rate, layout, shards, most_segments)) is not None:
        return sizing
    possible = filter(_allowed, range(shards, fewest + 1))
    number = next(each for each in possible if fitting(capacity, rate, layout, each, most_segments) is not None)
    raise ValueError(f"shards={shards} is too few for {capacity:,} items at {rate:.3g}: {number} are needed")


def fitting(capacity: int, rate: float, layout: str, shards: int, most_segments: int) -> Sizing | None:
    """Return the geometry of a slice of so many shards; None if they need more bitmaps than ``most_segments`` each.

    It has one bitmap a shard if that is within ``segment_limit``. Else it has the fewest of ``ROWS`` that are, or more
    that save a tenth of the memory. It has any number if ``ROWS`` has none for these shards.
    """
    multiples = range(shards, min(most_segments * shards, SHARDS_LIMIT) + 1, shards)
    sizings = (_sized(capacity, rate, layout, shards, each) for each in ROWS if each in multiples)
    found = [each for each in sizings if each.segment_bytes <= segment_limit(layout)]
    if found and found[0].segments > shards:
        most = min(each.memory for each in found) * (1 + _WORTH_MORE_BITMAPS)
        return next(each for each in found if each.memory <= most)
    others = found or (_sized(capacity, rate, layout, shards, each) for each in multiples)
    return next((each for each in others if each.segment_bytes <= segment_limit(layout)), None)


def fewest_shards(capacity: int, error_rate: float, layout: str, share: float | None = None) -> int | None:
    """Return the fewest shards whose slices are within ``segment_limit``; None if even ``SHARDS_LIMIT`` are too few.

    Raises:
        ValueError: an argument is impossible for any number of shards; ``size`` describes them.
    """
    check_among("layout", layout, LAYOUTS)
    check_least("capacity", capacity, 1)
    if not isinstance(error_rate, int | float) or not ERROR_RATES[0] <= error_rate <= ERROR_RATES[1]:
        raise ValueError(f"error_rate is from {ERROR_RATES[0]:g} to {ERROR_RATES[1]:g} and not {error_rate!r}")
    rate = error_rate if share is None else share
    if capacity > SHARDS_LIMIT * 8 * segment_limit(layout):  # no layout has less than a bit an item
        return None
    for shards in filter(_allowed, range(1, SHARDS_LIMIT + 1)):
        if _sized(capacity, rate, layout, shards).segment_bytes <= segment_limit(layout):
            return shards
    return None


def grown(first: Sizing, index: int, share: float) -> Sizing | None:
    """Return the geometry of slice ``index`` of a growing filter; None if too few items would fit.

    The slice holds 2^index times the items of the first slice, or as many as fit. It has the layout, k and shards of
    slice 0, which is ``first``, and a ``share`` in the error rate. Its bitmaps become larger up to ``segment_limit``,
    and then twice as many up to ``GROWN_SEGMENTS``. Nothing depends on the number of shards.
    """
    if index == 0:
        return first
    layout, k = first.layout, first.k
    if layout == REDISBLOOM:
        bits = 8 * MODULE_LIMIT - 64
        most = int(min(bits / _module_bits_per_item(share), share * bits**2 / (2 * COINCIDENCES)))
    else:
        most = _items_within(layout, k, units_within(layout, k, SEGMENT_LIMIT), share)
    wanted, segments = first.segment_capacity * 2**index, first.segments
    while wanted > most and segments < most_grown(first):
        wanted, segments = wanted // 2, 2 * segments
    capacity = min(wanted, most)
    if capacity < min(first.segment_capacity, _FEWEST_GROWN):
        return None
    if layout == REDISBLOOM:
        return _of_the_module(capacity * segments, share, first.shards, segments, capacity)
    return replace(
        first,
        capacity=capacity * segments,
        error_rate=share,
        segments=segments,
        segment_capacity=capacity,
        units=_units_for(layout, k, capacity, share),
    )


def most_grown(first: Sizing) -> int:
    """Return the most bitmaps, over all shards, of a slice of a growing filter whose slice 0 is ``first``."""
    segments = first.segments
    while 2 * segments <= GROWN_SEGMENTS:
        segments *= 2
    return segments


def allocated(length: int) -> int:
    """Return the MEMORY USAGE of a string of ``length`` bytes, on a server built with jemalloc (most are).

    jemalloc rounds the string, with its header and a final zero byte, up to a size class; each doubling has four
    classes. The key and the value's object are added. The result is right within 1.2 % from 1 KiB up. A server built
    with the C library's allocator (the embedded one) has no such classes and may need up to a fifth less.
    """
    wanted = length + (_HEADER if length < _LONG else _LONG_HEADER)
    step = 16 if wanted <= _SMALL_CLASSES else 2 ** ((wanted - 1).bit_length() - 3)
    return -(-wanted // step) * step + _KEY_AND_OBJECT


def segment_capacity(capacity: int, segments: int) -> int:
    """Return the number of items that one of so many segments is sized for: the mean and three standard deviations.

    The 4,096 values that choose a segment fall unevenly into most numbers of ranges, so it is the mean of the fullest.
    """
    mean = capacity * math.ceil(SHARDS_LIMIT / segments) / SHARDS_LIMIT
    return capacity if segments == 1 else math.ceil(mean + 3 * math.sqrt(mean))


def _allowed(shards: int) -> bool:
    return is_whole(shards, 1, SHARDS_LIMIT) and (shards <= ANY_SHARDS or shards & (shards - 1) == 0)


def _sized(capacity: int, error_rate: float, layout: str, shards: int, segments: int | None = None) -> Sizing:
    segments = segments or shards
    items = segment_capacity(capacity, segments)
    if layout == REDISBLOOM:
        return _of_the_module(capacity, error_rate, shards, segments, items)
    if layout != "blocked":
        bits = classic_bits(items, error_rate)
        return Sizing(layout, capacity, error_rate, shards, segments, items, classic_k(bits, items, error_rate), bits)
    k = _blocked_k(error_rate)
    return Sizing(layout, capacity, error_rate, shards, segments, items, k, _units_for(layout, k, items, error_rate))


def _of_the_module(capacity: int, error_rate: float, shards: int, segments: int, items: int) -> Sizing:
    """Reserve for so many items that coincidences keep to the half of the error rate that the module leaves."""
    bits = math.sqrt(2 * COINCIDENCES * items / error_rate)
    reserved = max(items, LEAST_RESERVED, math.ceil(bits / _module_bits_per_item(error_rate)))
    return Sizing(REDISBLOOM, capacity, error_rate, shards, segments, items, module_hashes(error_rate), reserved)


@cache
def _units_for(layout: str, k: int, items: int, share: float) -> int:
    """Return the fewest units that keep ``items`` items within the error rate ``share``."""
    if layout == "blocked":
        return math.ceil(items * blocked_bits_per_item(k, share) / (_WORD_BITS * k))
    return _fewest(lambda units: _classic_rate(k, units, items) <= share)


@cache
def _items_within(layout: str, k: int, units: int, share: float) -> int:
    """Return the most items that ``units`` units hold within the error rate ``share``."""
    if layout == "blocked":
        return int(units * _WORD_BITS * k / blocked_bits_per_item(k, share))
    return _fewest(lambda items: _classic_rate(k, units, items) > share) - 1


def _floor(items: float, cells: int) -> float:
    """Return the floor: the error rate that double hashing adds to classic and counting, for any number of offsets.

    Source: Dillinger and Manolios 2004.
    """
    return 4 * items / cells**2


def _classic_rate(k: int, units: int, items: float) -> float:
    return classic_error_rate(k, units / items) + _floor(items, units)


def _fewest(enough: Callable[[int], bool]) -> int:
    """Return the least number from 1 up for which ``enough`` is true; it must be true for all higher numbers too."""
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
    """Return the smallest k whose bits an item are within 5 % of the fewest."""
    bits = {k: blocked_bits_per_item(k, error_rate) for k in BLOCKED_K}
    enough = min(bits.values()) * (1 + _WORTH_A_LARGER_K)
    return next(k for k in BLOCKED_K if bits[k] <= enough)


def _blocked_rate(k: int, mean: float) -> float:
    """Return the sum of Poisson(i; mean) (1 - (31/32)^i)^k over the number i of items in a block."""
    spread = 12 * math.sqrt(mean) + 40
    first, last = max(1, int(mean - spread)), int(mean + spread)
    log_mean = math.log(mean) if mean > 0 else -math.inf
    unset = math.log(1 - 1 / _WORD_BITS)
    return math.fsum(
        math.exp(i * log_mean - mean - math.lgamma(i + 1)) * (-math.expm1(i * unset)) ** k
        for i in range(first, last + 1)
    )


def size_text(size: float) -> str:
    """Return bytes as a short text, in units of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004
            return f"{size:.3g} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.3g} TB"
