"""Items that collide under MurmurHash3 (x64, 128 bits): those for one seed, and those for every seed.

Source of the second: J.-P. Aumasson, D. J. Bernstein, M. Boßlet, "Hash-flooding DoS reloaded", 29C3, 2012. A block of
16 bytes is two words, and each is mixed by a bijection without the seed before it meets the state. So an attacker
chooses the differences that reach the state. Those in the highest bit survive additions and multiplications by odd
numbers unchanged, whatever the state is, and cancel in the next block.
"""

from __future__ import annotations

import itertools
import struct

import numpy as np

_ALL = 2**64 - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_A1, _A2 = 0x52DCE729, 0x38495AB5
_FINAL = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)

#: The bytes of the characters in the URIs: letters and digits, and the two of U+00C0 to U+07FF in UTF-8.
_PLAIN = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_LEADING, _CONTINUING = np.arange(0xC3, 0xE0, dtype=np.uint8), np.arange(0x80, 0xC0, dtype=np.uint8)


def item_of(digest: bytes, seed: int, first: bytes = b"") -> bytes:
    """Return an item with this digest under this seed: ``first``, whole blocks of 16 bytes, and one block more."""
    h1, h2 = seed, seed
    for k1, k2 in struct.iter_unpack("<2Q", first):
        h1 = (_left(h1 ^ _mixed(k1, _C1, 31, _C2), 27) + h2) * 5 + _A1 & _ALL
        h2 = (_left(h2 ^ _mixed(k2, _C2, 33, _C1), 31) + h1) * 5 + _A2 & _ALL
    g1, g2 = _before_the_end(digest, len(first) + 16)
    fifth = _inverse(5)
    m1 = h1 ^ _left((g1 - _A1) * fifth - h2 & _ALL, 64 - 27)
    m2 = h2 ^ _left((g2 - _A2) * fifth - g1 & _ALL, 64 - 31)
    return first + struct.pack("<2Q", _unmixed(m1, _C1, 31, _C2), _unmixed(m2, _C2, 33, _C1))


def twin_for_every_seed(item: bytes) -> bytes:
    """Return bytes that have the digest of an item, of 32 bytes or more, under every seed of mmh3."""
    k1, k2, back, same = struct.unpack("<4Q", item[:32])
    k1, back = (_unmixed(_mixed(k, _C1, 31, _C2) ^ bit, _C1, 31, _C2) for k, bit in ((k1, 1 << 36), (back, 1 << 63)))
    k2 = _unmixed(_mixed(k2, _C2, 33, _C1) ^ 1 << 32, _C2, 33, _C1)
    return struct.pack("<4Q", k1, k2, back, same) + item[32:]


def uris_for_every_seed(doublings: int) -> list[str]:
    """Return 2^doublings URIs that have the same digest under every seed of mmh3."""
    start = b"https://example.com/?page=number"
    assert len(start) % 16 == 0
    # 36 + 27 and 32 + 31 are 63: the rotations bring both differences to the highest bit.
    k1, other_k1 = _twins(_C1, 31, _C2, bit=36)
    k2, other_k2 = _twins(_C2, 33, _C1, bit=32)
    back, other_back = _twins(_C1, 31, _C2, bit=63)
    pair = k1 + k2 + back + k2, other_k1 + other_k2 + other_back + k2
    return [(start + b"".join(parts)).decode() for parts in itertools.product(pair, repeat=doublings)]


def _twins(factor: int, turn: int, second: int, *, bit: int) -> tuple[bytes, bytes]:
    """Return two words of 8 bytes of text that differ in one bit once they are mixed."""
    dice = np.random.default_rng(1)
    for _ in range(100):
        drawn = _texts(dice, 2**17)
        mixed = _turned(drawn.view("<u8")[:, 0] * np.uint64(factor), turn) * np.uint64(second)
        others = _turned((mixed ^ np.uint64(1 << bit)) * np.uint64(_inverse(second)), 64 - turn)
        others = (others * np.uint64(_inverse(factor))).view(np.uint8).reshape(-1, 8)
        (found,) = np.nonzero(_are_texts(others))
        if len(found):
            return drawn[found[0]].tobytes(), others[found[0]].tobytes()
    raise LookupError("no twins")


def _texts(dice: np.random.Generator, count: int) -> np.ndarray:
    """Return random words of 8 bytes that are texts, each of characters of one byte and of two."""
    drawn = dice.choice(_PLAIN, (count, 8))
    for place in range(7):
        wide = (dice.random(count) < 0.5) & np.isin(drawn[:, place], _PLAIN)
        drawn[wide, place] = dice.choice(_LEADING, wide.sum())
        drawn[wide, place + 1] = dice.choice(_CONTINUING, wide.sum())
    return drawn


def _are_texts(words: np.ndarray) -> np.ndarray:
    leading, continuing = np.isin(words, _LEADING), np.isin(words, _CONTINUING)
    known = (leading | continuing | np.isin(words, _PLAIN)).all(axis=1)
    paired = (leading[:, :-1] == continuing[:, 1:]).all(axis=1)
    return known & paired & ~leading[:, -1] & ~continuing[:, 0]


def _turned(words, by: int):
    return words << np.uint64(by) | words >> np.uint64(64 - by)


def _left(word: int, by: int) -> int:
    return (word << by | word >> 64 - by) & _ALL


def _inverse(odd: int) -> int:
    return pow(odd, -1, 2**64)


def _mixed(word: int, factor: int, turn: int, second: int) -> int:
    return _left(word * factor & _ALL, turn) * second & _ALL


def _unmixed(word: int, factor: int, turn: int, second: int) -> int:
    return _left(word * _inverse(second) & _ALL, 64 - turn) * _inverse(factor) & _ALL


def _before_the_end(digest: bytes, length: int) -> tuple[int, int]:
    """Return the state before the last steps of the hash, which make the digest of it."""
    h1, h2 = struct.unpack("<2Q", digest)
    for unfinished in (_unfinished, None):
        h2 = h2 - h1 & _ALL
        h1 = h1 - h2 & _ALL
        if unfinished:
            h1, h2 = unfinished(h1), unfinished(h2)
    return h1 ^ length, h2 ^ length


def _unfinished(word: int) -> int:
    for factor in reversed(_FINAL):
        word = (word ^ word >> 33) * _inverse(factor) & _ALL
    return word ^ word >> 33
