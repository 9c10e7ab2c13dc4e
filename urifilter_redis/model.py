"""The layouts in plain Python, over a bytearray and without a server.

It is what the scripts are compared with byte for byte, and it is written for the reader: this is what
``insert``, ``contains`` and ``forget`` mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from urifilter_redis.digest import words
from urifilter_redis.sizing import slice_bytes

__all__ = ["ModelShard", "ModelSlice", "blocked_offsets", "classic_offsets"]

_GROUPS_A_WORD = 6


def classic_offsets(digest: bytes, bits: int, k: int) -> Iterator[int]:
    """Yield k SETBIT offsets in a bitmap of ``bits``, by enhanced double hashing.

    Source: P. C. Dillinger, P. Manolios, "Bloom Filters in Probabilistic Verification", FMCAD 2004.
    """
    d0, d1, d2, d3 = words(digest)
    x = (d0 + 2**32 * (d1 % 2**20)) % bits
    y = (d2 + 2**32 * (d3 % 2**20)) % bits
    for i in range(1, k + 1):
        yield x
        x = (x + y) % bits
        y = (y + i) % bits


def blocked_offsets(digest: bytes, blocks: int, k: int) -> Iterator[int]:
    """Yield k SETBIT offsets, one in each 32-bit word of one of ``blocks`` blocks.

    Words are little-endian and bit p of a word is 2^p, whereas SETBIT counts from a byte's highest bit.

    Source: F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", WEA 2007.
    """
    d = words(digest)
    block = d[0] % blocks
    for i in range(k):
        position = d[1 + i // _GROUPS_A_WORD] >> 5 * (i % _GROUPS_A_WORD) & 31
        byte = 4 * (block * k + i) + position // 8
        yield 8 * byte + 7 - position % 8


class ModelSlice:
    """One bitmap.

    Attributes:
        data: what GETRANGE of the whole slice returns.
    """

    def __init__(self, layout: str, k: int, units: int) -> None:
        self.data = bytearray(slice_bytes(layout, k, units))
        self._offsets = {"blocked": blocked_offsets, "classic": classic_offsets}[layout]
        self._k, self._units = k, units

    def has(self, digest: bytes) -> bool:
        """Whether all k bits of the item are set."""
        return all(self.data[at >> 3] & 128 >> (at & 7) for at in self._offsets(digest, self._units, self._k))

    def insert(self, digest: bytes) -> bool:
        """Set the item's bits; return whether any was not."""
        new = not self.has(digest)
        for at in self._offsets(digest, self._units, self._k):
            self.data[at >> 3] |= 128 >> (at & 7)
        return new


class ModelShard:
    """One shard of a filter with retention ``forever``."""

    def __init__(self, layout: str, k: int, units: int) -> None:
        self.today = ModelSlice(layout, k, units)
        self.forgotten: set[bytes] = set()
        self.inserted = 0

    def insert(self, digests: Sequence[bytes]) -> list[int]:
        """Return the age of each item, 0 being new; afterwards all are seen."""
        ages = []
        for digest in digests:
            new = self.today.insert(digest) or digest in self.forgotten
            self.forgotten.discard(digest)
            self.inserted += new
            ages.append(0 if new else 1)
        return ages

    def contains(self, digests: Sequence[bytes]) -> list[int]:
        """Return the age of each item, 0 being not seen."""
        return [int(self.today.has(digest) and digest not in self.forgotten) for digest in digests]

    def forget(self, digests: Sequence[bytes]) -> list[int]:
        """Make items new again; return 1 for each that was seen."""
        were_there = []
        for digest in digests:
            were_there += self.contains([digest])
            if were_there[-1]:
                self.forgotten.add(digest)
        return were_there
