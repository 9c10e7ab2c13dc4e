"""Packing of pieces: round trips, sizes against the entropy, and input that was never packed."""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
import time
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.model import ModelSlice

from urifilter_redis.errors import ArchiveCorrupt
from urifilter_redis.storage.packing import pack, unpack

PIECE = 256 << 10
PLAIN, ZSTD, HUFFMAN, SPLIT = b"\0", b"\1", b"\2", b"\3"


def random_bits(fill, size=PIECE, seed=1):
    """Bits that are set independently, by the binary digits of the fill."""
    dice, bits = random.Random(seed), 0
    for digit in range(20):
        more = dice.getrandbits(8 * size)
        bits = bits | more if round(fill * 2**20) >> digit & 1 else bits & more
    return bits.to_bytes(size)


def bitmap(layout, fill, units, seed=1):
    """A bitmap of a layout, k = 12."""
    made, dice = ModelSlice(layout, 12, units), random.Random(seed)
    cells = units * 32 * 12 if layout == "blocked" else units
    for _ in range(round(-cells / 12 * math.log1p(-fill))):
        made.insert(dice.randbytes(16))
    return bytes(made.data)


def entropy(data):
    """Bytes that independent bits of this fill take."""
    fill = int.from_bytes(data).bit_count() / (8 * len(data))
    return -(fill * math.log2(fill) + (1 - fill) * math.log2(1 - fill)) * len(data)


def deflated(data):
    coder = zlib.compressobj(wbits=-15, strategy=zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data) + coder.flush()


def frame(claimed, *blocks, window=27):
    """A zstd frame of blocks of one repeated byte that claims a content size."""
    header = struct.pack("<IBBI", 0xFD2FB528, 2 << 6, window - 10 << 3, claimed)
    last = len(blocks) - 1
    return header + b"".join(
        struct.pack("<I", size << 3 | 1 << 1 | (n == last))[:3] + b"a" for n, size in enumerate(blocks)
    )


def split(mask, others):
    """A split piece, of a packed mask and packed others."""
    return SPLIT + struct.pack(">I", len(mask)) + mask + others


fills = st.one_of(st.floats(0, 1), st.floats(0, 0.06), st.sampled_from([0.0, 0.001, 0.01, 0.0155, 0.05, 1.0]))
lengths = st.one_of(st.integers(1, 600), st.integers(1, 20_000))
pieces = st.one_of(
    st.builds(random_bits, fills, lengths, st.integers(0, 2**32)),
    st.binary(min_size=1, max_size=2000),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=40), st.integers(1, 200)),
)


@given(pieces)
def test_round_trip(piece):
    """What is packed comes back, and takes at most the tag more."""
    packed = pack(piece)
    assert len(packed) <= 1 + len(piece)
    assert unpack(packed, len(piece)) == piece


@pytest.mark.parametrize("fill", [0, 0.0001, 0.001, 0.01, 0.0155, 0.03, 0.044, 0.046, 0.06, 0.1, 0.25, 0.5, 0.9, 1])
@pytest.mark.parametrize("length", [PIECE, PIECE - 1, 70_001])
def test_round_trip_of_large_pieces(fill, length):
    """Up to the length of a piece, at fills on both sides of every threshold."""
    piece = random_bits(fill, length)
    assert unpack(pack(piece), length) == piece


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 63, 64, 65, 511, 512, 513])
@pytest.mark.parametrize("byte", [b"\0", b"\1", b"\xff", b"%"])
def test_round_trip_of_one_byte_repeated(byte, length):
    """The shortest pieces too, and what could be taken for a format."""
    piece = byte * length
    assert unpack(pack(piece), length) == piece


@pytest.mark.parametrize(("layout", "units"), [("blocked", 1000), ("classic", 400_003), ("counting", 100_001)])
@pytest.mark.parametrize("fill", [0.001, 0.0155, 0.1, 0.4])
def test_round_trip_of_bitmaps(layout, units, fill):
    """As the scripts fill them."""
    piece = bitmap(layout, fill, units)
    packed = pack(piece)
    assert unpack(packed, len(piece)) == piece
    assert len(packed) < len(piece)


@pytest.mark.parametrize(
    ("fill", "most"),
    [(0.001, 1.08), (0.01, 1.03), (0.0155, 1.03), (0.03, 1.03), (0.045, 1.08), (0.05, 1.06), (0.1, 1.03), (0.25, 1.02)],
)
def test_size_of_random_bits(fill, most):
    """Near the entropy."""
    piece = random_bits(fill)
    assert entropy(piece) * 0.99 < len(pack(piece)) < entropy(piece) * most


@pytest.mark.parametrize(("fill", "most"), [(0.001, 0.62), (0.01, 0.76), (0.0155, 0.81)])
def test_size_of_blocked_bitmaps(fill, most):
    """Blocks in which no item is yet take next to nothing."""
    piece = bitmap("blocked", fill, 5461)
    assert len(pack(piece)) < entropy(piece) * most


def test_size_of_counters():
    """Few counters are over 1, and those bits cost little."""
    piece = bitmap("counting", 0.2, 100_000)
    assert len(pack(piece)) < 0.8 * entropy(piece)


def test_size_of_what_does_not_shrink():
    """It stays as it is, after the tag."""
    piece = random_bits(0.5)
    assert pack(piece) == PLAIN + piece


def test_size_of_records():
    """Repetitions are found."""
    records = "".join(json.dumps({"epoch": n, "opened": 86_400_000 * n}) for n in range(1000)).encode()
    assert len(pack(records)) < 0.3 * len(records)
    assert len(pack(bytes(PIECE))) < 40


@pytest.mark.parametrize(
    ("tag", "piece"),
    [
        (PLAIN, random_bits(0.5)),
        (ZSTD, b"https://example.com/" * 1000),
        (HUFFMAN, random_bits(0.08)),
        (SPLIT, random_bits(0.01)),
    ],
)
def test_every_coding_is_used(tag, piece):
    """And its tag is what archives already hold."""
    assert pack(piece)[:1] == tag


@pytest.mark.slow
def test_pieces_packed_before():
    """What other levels of zstd and zlib made is read as well."""
    piece = random_bits(0.05)
    assert unpack(ZSTD + zstandard.ZstdCompressor(level=3).compress(piece), PIECE) == piece
    assert unpack(HUFFMAN + deflated(piece), PIECE) == piece
    assert unpack(HUFFMAN + zlib.compress(piece, 9, wbits=-15), PIECE) == piece


def refused_or_as_long(packed, length):
    """Nothing but ArchiveCorrupt is raised, and nothing of another length returned."""
    with contextlib.suppress(ArchiveCorrupt):
        assert len(unpack(packed, length)) == length


@given(st.sampled_from([b"", PLAIN, ZSTD, ZSTD + b"\x28\xb5\x2f\xfd", HUFFMAN, SPLIT]), st.binary(), lengths)
def test_garbage(tag, garbage, length):
    """Of each tag and none."""
    refused_or_as_long(tag + garbage, length)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(64, 400))
def test_garbage_in_a_split_piece(mask, others, length):
    """Mask and others are checked as whole pieces are."""
    refused_or_as_long(split(mask, others), length)
    refused_or_as_long(split(PLAIN + mask, PLAIN + others), 8 * len(mask))


@given(pieces, st.data())
def test_flipped_bits(piece, data):
    """Refused, or other bytes of the same length, which the SHA-256 of the manifest tells."""
    packed = bytearray(pack(piece))
    for at in data.draw(st.lists(st.integers(0, 8 * len(packed) - 1), min_size=1, max_size=3)):
        packed[at >> 3] ^= 1 << (at & 7)
    refused_or_as_long(bytes(packed), len(piece))


@given(pieces, st.data())
def test_truncated(piece, data):
    """Every beginning of a packed piece is refused, and so is what has more behind it."""
    packed = pack(piece)
    with pytest.raises(ArchiveCorrupt):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))], len(piece))
    with pytest.raises(ArchiveCorrupt):
        unpack(packed + data.draw(st.binary(min_size=1, max_size=9)), len(piece))


@given(pieces, st.integers(0, 3000))
def test_another_length(piece, length):
    """Refused, or as many other bytes as were asked for, which the SHA-256 of the manifest tells."""
    refused_or_as_long(pack(piece), length)


def zeros_by_deflate():
    """A raw deflate stream of 1 GiB of zeros."""
    coder = zlib.compressobj(wbits=-15)
    return b"".join(coder.compress(bytes(1 << 20)) for _ in range(1 << 10)) + coder.flush()


ALL = PLAIN + b"\xff" * (PIECE // 8)
#: A thousand masks around nothing.
NESTED = b"".join(SPLIT + struct.pack(">I", 5 * (1000 - n)) for n in range(1000))

BOMBS = {
    "zstd that claims 0": lambda: ZSTD + frame(0, *[1 << 17] * 8192),
    "zstd that claims a piece": lambda: ZSTD + frame(PIECE, *[1 << 17] * 8192),
    "zstd that claims 4 GiB": lambda: ZSTD + frame(2**32 - 1, *[1 << 17] * 8192),
    "zstd that claims a piece and has less": lambda: ZSTD + frame(PIECE, 100),
    "zstd with a window of 2 GiB": lambda: ZSTD + frame(PIECE, *[1 << 17] * 3, window=31),
    "zstd that claims nothing": lambda: (
        ZSTD + zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(1 << 28))
    ),
    "zstd, skippable": lambda: ZSTD + struct.pack("<II", 0x184D2A50, PIECE) + bytes(9),
    "Huffman of 1 GiB": lambda: HUFFMAN + zeros_by_deflate()[: PIECE - 1],
    "Huffman without end": lambda: HUFFMAN + b"\0\0\0\xff\xff" * (PIECE // 5),
    "Huffman, one byte too many": lambda: HUFFMAN + deflated(bytes(PIECE + 1)),
    "Huffman with a tail": lambda: HUFFMAN + deflated(bytes(PIECE)) + b"\0",
    "split, mask of 1 GiB": lambda: split(HUFFMAN + zeros_by_deflate()[: PIECE // 8 - 1], PLAIN),
    "split, others of 1 GiB": lambda: split(PLAIN + b"\x01" * (PIECE // 8), HUFFMAN + zeros_by_deflate()[: PIECE // 2]),
    "split, mask claims more than there is": lambda: split(ALL, PLAIN + b"abc"),
    "split, mask claims more than is compressed": lambda: split(ALL, ZSTD + frame(PIECE, 1 << 17)),
    "split, mask longer than allowed": lambda: split(PLAIN + bytes(PIECE // 8 + 1), PLAIN),
    "split, mask of a mask of a mask": lambda: NESTED,
    "split, others split": lambda: split(ALL, split(ALL, PLAIN)),
    "split, length of the mask beyond the end": lambda: SPLIT + b"\xff\xff\xff\xff" + bytes(100),
    "plain, longer": lambda: PLAIN + bytes(PIECE + 1),
    "another coding": lambda: b"\4" + bytes(100),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "1 GiB" in name else name for name in BOMBS]
)
def test_bombs(name):
    """Refused within bounds of memory and time, whatever they would become."""
    packed = BOMBS[name]()
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ArchiveCorrupt):
            unpack(packed, PIECE)
        assert tracemalloc.get_traced_memory()[1] < 20 * PIECE
        assert time.process_time() - start < 2
    finally:
        tracemalloc.stop()


def test_the_fullest_mask():
    """The most that a split piece of this length can ask for: memory is bounded."""
    packed = split(ALL, HUFFMAN + deflated(b"a" * PIECE))
    tracemalloc.start()
    try:
        assert unpack(packed, PIECE) == b"a" * PIECE
        assert tracemalloc.get_traced_memory()[1] < 20 * PIECE
    finally:
        tracemalloc.stop()


def test_a_mask_with_bits_beyond_the_piece():
    """The mask of 65 bytes has 7 bits to spare, which are not set."""
    assert unpack(split(PLAIN + b"\1" + bytes(8), PLAIN + b"x"), 65) == b"x" + bytes(64)
    with pytest.raises(ArchiveCorrupt, match="mask"):
        unpack(split(PLAIN + b"\2" + bytes(8), PLAIN + b"x"), 65)
