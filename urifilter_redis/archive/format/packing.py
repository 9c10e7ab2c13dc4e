"""How a piece of a bitmap, or of anything else, is packed: the first byte says which coding it is.

Bits of a Bloom filter are as good as random, so that nothing but their share can be used: Huffman's code of the bytes
does that within 7 % of the entropy from a fill of 4.5 % up (2 % from 8 % up), whereas the matches that zstd looks for
cost more than they save. Sparser pieces are split into a mask of the bytes that are not zero, which is packed in turn,
and those bytes, because Huffman's code spends a whole bit on every zero; the mask also shows where blocks are empty.
What has repetitions is left to zstd.

Source: D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952. ``bench/packing.py`` measures
sizes and speeds.
"""

from __future__ import annotations

import zlib

import zstandard

from urifilter_redis.errors import ArchiveCorrupt

__all__ = ["pack", "unpack"]

_PLAIN, _ZSTD, _HUFFMAN, _SPLIT = b"\0", b"\1", b"\2", b"\3"

#: zstd's level: higher ones gain little on what is archived, and are slow.
_LEVEL = 1

#: Share of bytes that are not zero up to which a piece is split: with more of them Huffman's code is as small.
_SPARSE = 0.45

#: Such bytes up to which it is split, too: each takes 50 ns to put back, and a piece of 256 KiB at most 5 ms.
_FEW = 80_000

#: Bytes from which on a piece may be split: below, nothing is gained, and so masks of masks end.
_SPLIT_FROM = 64

#: Bytes of the length of a packed mask.
_LENGTH = 4

#: zlib's raw deflate, without header and checksum: manifests have a better one.
_RAW = -zlib.MAX_WBITS

#: zlib's highest memLevel: each of its codes serves 32 Ki bytes, and not 16 Ki as by default, which saves 0.4 %.
_MEMORY = 9

#: From a byte to the digit of a mask, and from a digit to a zero byte or itself.
_DIGITS = b"0" + 255 * b"1"
_ZEROS = bytes.maketrans(b"0", b"\0")


def pack(piece: bytes) -> bytes:
    """Return a piece in the smallest of the codings that suit it; at most one byte longer than it is."""
    if len(piece) >= _SPLIT_FROM and len(piece) - piece.count(0) <= min(_SPARSE * len(piece), _FEW):
        return min(_plain(piece), _zstd(piece), _split(piece), key=len)
    return _pack_whole(piece)


def unpack(packed: bytes, length: int) -> bytes:
    """Return a piece of ``length`` bytes; never more is decompressed.

    Raises:
        ArchiveCorrupt: it is not what was packed.
    """
    if len(packed) > 1 + length:
        raise ArchiveCorrupt(f"a piece of {length} bytes takes {len(packed)} packed")
    split = packed[:1] == _SPLIT and length >= _SPLIT_FROM
    data = _unsplit(packed[1:], length) if split else _unpack_whole(packed, length)
    if len(data) != length:
        raise ArchiveCorrupt(f"a piece has {len(data)} bytes and not {length}")
    return data


def _pack_whole(piece: bytes) -> bytes:
    return min(_plain(piece), _zstd(piece), _huffman(piece), key=len)


def _unpack_whole(packed: bytes, length: int) -> bytes:
    """Return what is not split: at most ``length`` bytes if it is compressed.

    Raises:
        ArchiveCorrupt: it cannot be decompressed.
    """
    tag, data = packed[:1], packed[1:]
    try:
        if tag == _PLAIN:
            return data
        if tag == _ZSTD:
            return _unzstd(data, length)
        if tag == _HUFFMAN:
            return _unhuffman(data, length)
    except (zstandard.ZstdError, zlib.error) as error:
        raise ArchiveCorrupt(f"a piece cannot be decompressed: {error}") from error
    raise ArchiveCorrupt(f"a piece is of the unknown coding {tag!r}")


def _plain(piece: bytes) -> bytes:
    return _PLAIN + piece


def _zstd(piece: bytes) -> bytes:
    return _ZSTD + zstandard.ZstdCompressor(level=_LEVEL).compress(piece)


def _unzstd(data: bytes, length: int) -> bytes:
    # as many bytes as the frame claims are allocated, whatever max_output_size says
    if zstandard.get_frame_parameters(data).content_size != length:
        raise ArchiveCorrupt("a piece claims another length")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=length, allow_extra_data=False)


def _huffman(piece: bytes) -> bytes:
    coder = zlib.compressobj(wbits=_RAW, memLevel=_MEMORY, strategy=zlib.Z_HUFFMAN_ONLY)
    return b"".join((_HUFFMAN, coder.compress(piece), coder.flush()))


def _unhuffman(data: bytes, length: int) -> bytes:
    decoder = zlib.decompressobj(_RAW)
    found = decoder.decompress(data, length + 1)  # 0 would be no limit, and the end is seen only with room left
    if not decoder.eof or decoder.unused_data or len(found) != length:
        raise ArchiveCorrupt("a piece ends too early or too late")
    return found


def _split(piece: bytes) -> bytes:
    """Return length and coding of the mask, and the coding of the bytes that are not zero."""
    mask = int(piece.translate(_DIGITS), 2).to_bytes(_mask_bytes(len(piece)))
    packed = pack(mask)
    return b"".join((_SPLIT, len(packed).to_bytes(_LENGTH), packed, _pack_whole(piece.translate(None, b"\0"))))


def _unsplit(data: bytes, length: int) -> bytes:
    """Return ``length`` bytes, or raise ``ArchiveCorrupt``."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH])
    mask = int.from_bytes(unpack(data[_LENGTH:end], _mask_bytes(length)))
    if mask.bit_length() > length:
        raise ArchiveCorrupt("the mask of a piece is longer than it")
    count = mask.bit_count()
    others = _unpack_whole(data[end:], count)
    if len(others) != count:
        raise ArchiveCorrupt(f"a piece has {len(others)} bytes for the {count} of its mask")
    return format(mask, f"0{length}b").encode().translate(_ZEROS).replace(b"1", b"%c") % tuple(others)


def _mask_bytes(length: int) -> int:
    return (length + 7) // 8
