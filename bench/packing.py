"""Measure the packing of bitmaps, its size and speed: ``python bench/packing.py``.

It packs a piece of 256 KiB of each layout, and of random bits, at each fill (counting: the share of counters over 0).
A size is the ratio to the entropy H of the piece's cells (bits, or counters of 4 bits) if they were independent. Cells
of layout blocked depend on one another, so ratios below 1 are possible. For comparison it shows zstd at level 3 and
unpacked pieces. Speeds are the best of several runs, in MB of bitmap a second. Machines are noisy: read ratios.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import zstandard

from urifilter_redis.bloom.digest import blocked_offsets, classic_offsets
from urifilter_redis.storage.packing import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

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
    took = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return PIECE / min(took) / 1e6


def row(kind: Callable[[float, random.Random], bytes], fill: float) -> str:
    """Return a row of the table."""
    data = kind(fill, random.Random(round(1e4 * fill)))
    packed, zstd = pack(data), zstandard.ZstdCompressor(level=3).compress(data)
    assert unpack(packed, PIECE) == data
    bound = entropy(data, counters=kind is counting)
    sizes = f"{len(packed) / bound:.3f} | {len(zstd) / bound:.3f} | {PIECE / bound:.3f}"
    speeds = f"{speed(lambda: pack(data)):,.0f} | {speed(lambda: unpack(packed, PIECE)):,.0f}"
    return f"| {kind.__name__.replace('_', ' ')} | {fill:.2%} | {sizes} | {speeds} |"


def main() -> None:
    """Print the table."""
    print("| bits | fill | packed / H | zstd-3 / H | plain / H | pack, MB/s | unpack, MB/s |")
    print("| :-- | --: | --: | --: | --: | --: | --: |")
    for kind in (random_bits, blocked, classic, counting):
        for fill in FILLS:
            print(row(kind, fill))


if __name__ == "__main__":
    main()
