"""The offsets of an item in plain Python, as the scripts compute them: for tests, the bench and exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis.bloom.digest import words

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["blocked_offsets", "classic_offsets"]

#: One 32-bit word of a digest gives six positions of five bits each.
_GROUPS_A_WORD = 6


def classic_offsets(digest: bytes, bits: int, k: int) -> Iterator[int]:
    """Yield an item's k SETBIT offsets in a bitmap of ``bits`` bits, by enhanced double hashing.

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
    """Yield an item's k SETBIT offsets in a bitmap of ``blocks`` blocks: one in each 32-bit word of the item's block.

    Words are little-endian and bit p of a word is 2^p, whereas SETBIT counts from a byte's highest bit.

    Source: F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", WEA 2007.
    """
    d = words(digest)
    block = d[0] % blocks
    for i in range(k):
        position = d[1 + i // _GROUPS_A_WORD] >> 5 * (i % _GROUPS_A_WORD) & 31
        byte = 4 * (block * k + i) + position // 8
        yield 8 * byte + 7 - position % 8
