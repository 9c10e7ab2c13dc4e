"""Measure the packing of bitmaps, its size and speed.

It packs a piece of 256 KiB of each layout, and of random bits, at each fill (counting: the share of counters over 0).
A size is the ratio to the entropy H of the piece's cells (bits, or counters of 4 bits) if they were independent. Cells
of layout blocked depend on one another, so ratios below 1 are possible. For comparison it shows zstd at level 3 and
unpacked pieces. Speeds are the best of several runs, in MB of bitmap a second. Machines are noisy: read ratios.
"""

from __future__ import annotations

import math
import random
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import zstandard

from bench.runner import Row
from urifilter_redis.bloom.digest import blocked_offsets, classic_offsets
from urifilter_redis.storage.packing import pack, unpack

PIECE, K, WORD = 256 << 10, 12, 32
FILLS = (0.001, 0.01, 0.0155, 0.05, 0.1, 0.25, 0.5)
RUNS = 7
#: The highest value of a counter. A counter that reaches it stays there.
STUCK = 15


def items(cells: int, fill: float, dice: random.Random) -> list[bytes]:
    """Return the digests of as many items as set the share ``fill`` of ``cells``."""
    return [dice.randbytes(16) for _ in range(round(-cells / K * math.log1p(-fill)))]


def random_bits(fill: float, dice: random.Random) -> bytes:
    """Return a piece whose bits are set independently."""
    bits, digits = 0, 20
    for digit in range(digits):  # of fill in binary, from the lowest: OR makes (1 + p) / 2 of p, AND makes p / 2
        more = dice.getrandbits(8 * PIECE)
        bits = bits | more if round(fill * 2**digits) >> digit & 1 else bits & more
    return bits.to_bytes(PIECE)


def blocked(fill: float, dice: random.Random) -> bytes:
    """Return the first piece of a bitmap of layout blocked."""
    blocks = PIECE // (4 * K) + 1
    data = bytearray(blocks * 4 * K)
    for digest in items(blocks * K * WORD, fill, dice):
        for at in blocked_offsets(digest, blocks, K):
            data[at >> 3] |= 128 >> (at & 7)
    return bytes(data[:PIECE])


def classic(fill: float, dice: random.Random) -> bytes:
    """Return a bitmap of layout classic."""
    data = bytearray(PIECE)
    for digest in items(8 * PIECE, fill, dice):
        for at in classic_offsets(digest, 8 * PIECE, K):
            data[at >> 3] |= 128 >> (at & 7)
    return bytes(data)


def counting(fill: float, dice: random.Random) -> bytes:
    """Return a bitmap of layout counting: counters of 4 bits."""
    counters = [0] * (2 * PIECE)
    for digest in items(2 * PIECE, fill, dice):
        for at in classic_offsets(digest, 2 * PIECE, K):
            counters[at] = min(counters[at] + 1, STUCK)
    return bytes(high << 4 | low for high, low in zip(counters[::2], counters[1::2], strict=True))


def entropy(data: bytes, *, counters: bool) -> float:
    """Return the entropy of a piece in bytes, as if its cells were independent."""
    if counters:
        counts = Counter(data.hex())
    else:
        ones = int.from_bytes(data).bit_count()
        counts = Counter({"1": ones, "0": 8 * len(data) - ones})
    return sum(count * math.log2(counts.total() / count) for count in counts.values()) / 8


def speed(work: Callable[[], bytes]) -> float:
    """Return MB of bitmap a second."""
    return PIECE / min(timeit.repeat(work, number=1, repeat=RUNS)) / 1e6


def row(kind: Callable[[float, random.Random], bytes], fill: float) -> Row:
    """Return a row of the table."""
    data = kind(fill, random.Random(round(1e4 * fill)))
    packed, zstd = pack(data), zstandard.ZstdCompressor(level=3).compress(data)
    assert unpack(packed, PIECE) == data
    bound = entropy(data, counters=kind is counting)
    sizes = {"packed": len(packed), "zstd-3": len(zstd), "plain": PIECE}
    speeds = {"pack, MB/s": partial(pack, data), "unpack, MB/s": partial(unpack, packed, PIECE)}
    return (
        {"bits": kind.__name__.replace("_", " "), "fill": f"{fill:.2%}"}
        | {f"{name} / H": f"{size / bound:.3f}" for name, size in sizes.items()}
        | {name: speed(work) for name, work in speeds.items()}
    )


def main() -> Iterator[Row]:
    """Yield the table."""
    return (row(kind, fill) for kind in (random_bits, blocked, classic, counting) for fill in FILLS)
