"""Digests: 16 bytes an item, and the offsets that the scripts, and here plain Python, compute of them."""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat

import mmh3

from urifilter_redis.bloom.encoding import encode_items
from urifilter_redis.bloom.normalize import normalizer
from urifilter_redis.checks import check_among

HASHES = ("mmh3", "md5", "blake2b")

#: The bytes of a digest.
SIZE = 16

_WORDS = struct.Struct("<4I")


def make_digester(
    normalize: str, hash_name: str, seed: str, rules: str | None = None
) -> Callable[[Sequence[object]], list[bytes]]:
    """Return a function that takes items and returns their digests, 16 bytes each: it normalises, encodes and hashes.

    The function raises BadItem if some items cannot be filtered; the error has the indices of all of them.

    Args:
        normalize: one of ``NORMALIZATIONS``.
        hash_name: one of ``HASHES``.
        seed: a seed as ``new_seed`` returns it.
        rules: canonical rules of the normalisation; None: there are none.
    """
    change, hash_all = normalizer(normalize, rules), hasher(hash_name, seed)

    def digests_of(items: Sequence[object]) -> list[bytes]:
        changed = items if change is None else list(map(change, items))
        try:
            return hash_all(map(str.encode, changed))  # type: ignore[arg-type]  # nearly always all items are str
        except (TypeError, UnicodeEncodeError):
            return hash_all(encode_items(changed))

    return digests_of


def hasher(name: str, seed: str) -> Callable[[Iterable[bytes]], list[bytes]]:
    """Return a function that takes the bytes of items and returns a list of their digests.

    Args:
        name: ``mmh3`` (MurmurHash3, x64, 128 bits), ``md5``, or ``blake2b``. blake2b is keyed and is for hostile
            input: an attacker can make pairs of items that collide under every seed of mmh3.
        seed: a seed as ``new_seed`` returns it.

    Raises:
        ValueError: there is no hash of this name.

    Example:
        >>> hasher("mmh3", "0")([b"https://example.com/"])[0].hex()
        '9f348cc2269b0ab5bd415398b25dcba4'
    """
    check_among("hash", name, HASHES)
    if name == "mmh3":
        numbers, digest = repeat(int(seed)), mmh3.mmh3_x64_128_digest
        return lambda items: list(map(digest, items, numbers))
    if name == "md5":
        return lambda items: [hashlib.md5(data, usedforsecurity=False).digest() for data in items]
    key = bytes.fromhex(seed)
    return lambda items: [hashlib.blake2b(data, digest_size=16, key=key).digest() for data in items]


def new_seed(name: str, seed: int | str | None = None) -> str:
    """Return a seed as text: decimal for mmh3, empty for md5, 32 hex digits for blake2b.

    Args:
        name: the name of a hash, one of ``HASHES``.
        seed: the wanted seed; None: a random one.

    Raises:
        ValueError: there is no hash of this name, or it does not take this seed.
    """
    check_among("hash", name, HASHES)
    if name == "mmh3":
        if seed is None:
            return str(secrets.randbits(32))
        if not re.fullmatch(r"\d{1,10}", str(seed)) or int(seed) >= 2**32:
            raise ValueError("the seed of mmh3 is a number from 0 to 4294967295")
        return str(int(seed))
    if name == "md5":
        if seed not in {None, ""}:
            raise ValueError("md5 takes no seed: leave it out")
        return ""
    text = secrets.token_hex(16) if seed is None else str(seed).lower()
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise ValueError("the seed of blake2b is 32 hex digits")
    return text


def words(digest: bytes) -> tuple[int, int, int, int]:
    """Return the digest as four little-endian 32-bit words d0 to d3."""
    return _WORDS.unpack(digest)


def split(packed: bytes) -> list[bytes]:
    """Return the digests that were joined."""
    return [packed[start : start + SIZE] for start in range(0, len(packed), SIZE)]


def shard_of(digest: bytes, shards: int) -> int:
    """Return the shard that a digest belongs to: floor(x S / 4096), x being the top 12 bits of d3 and S ``shards``."""
    return (int.from_bytes(digest[14:], "little") >> 4) * shards >> 12


def shards_of(digests: Iterable[bytes] | bytes, shards: int) -> Sequence[int]:
    """Return the shard of each digest; they may be packed."""
    packed = digests if isinstance(digests, bytes) else b"".join(digests)
    if 256 % shards == 0:  # the last byte decides
        return packed[SIZE - 1 :: SIZE].translate(_shards_of_bytes(shards))
    halves = array("H", packed)
    if sys.byteorder == "big":
        halves.byteswap()
    return [(half >> 4) * shards >> 12 for half in halves[7::8]]


@cache
def _shards_of_bytes(shards: int) -> bytes:
    """Return the shard for each value of the last byte; ``shards`` divides 256."""
    return bytes(last * shards >> 8 for last in range(256))


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
