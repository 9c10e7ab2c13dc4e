"""Pack and unpack pieces of bitmaps and records. The first byte of a packed piece names its coding.

The bits of a Bloom filter look random, so only the share of set bits can be used to compress them. Huffman's code of
the bytes comes within 7 % of the entropy from a fill of 4.5 % up, and within 2 % from 8 % up. The repetitions that zstd
looks for are rare there and cost more than they save.

Huffman's code spends at least one bit on each byte, which is too much for zero bytes. So a sparse piece is split: a
mask says which bytes are not zero, and those bytes follow. The mask is packed in turn.

A piece with repetitions is packed by zstd.

Source: D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952.
``bench/scripts/packing.py`` measures sizes and speeds.
"""

from __future__ import annotations

import zlib

import zstandard

from urifilter_redis.errors import ArchiveCorrupt

_PLAIN, _ZSTD, _HUFFMAN, _SPLIT = b"\0", b"\1", b"\2", b"\3"

#: zstd's level. Higher levels gain little on bitmaps and records, and are slow.
_LEVEL = 1

#: The highest share of bytes other than zero in a piece that is split. Above it Huffman's code is as small.
_SPARSE = 0.45

#: The highest number of bytes other than zero in a piece that is split. Each takes 50 ns to unpack, so that a piece
#: of 256 KiB takes at most 5 ms.
_FEW = 80_000

#: The least bytes of a piece that is split. Splitting a smaller one gains nothing; so the masks of masks end.
_SPLIT_FROM = 64

#: Bytes of the field that holds the length of a packed mask.
_LENGTH = 4

#: zlib's raw deflate, without header and checksum: manifests have a SHA-256.
_RAW = -zlib.MAX_WBITS

#: zlib's highest memLevel: each Huffman table serves 32 Ki bytes instead of the default 16 Ki, which saves 0.4 %.
_MEMORY = 9

#: _DIGITS maps each byte to its digit in the mask; _ZEROS maps the digit 0 to a zero byte.
_DIGITS = b"0" + 255 * b"1"
_ZEROS = bytes.maketrans(b"0", b"\0")


def pack(piece: bytes) -> bytes:
    """Return a piece in the smallest coding that suits it. It grows by one byte at most."""
    if len(piece) >= _SPLIT_FROM and len(piece) - piece.count(0) <= min(_SPARSE * len(piece), _FEW):
        return min(_PLAIN + piece, _zstd(piece), _split(piece), key=len)
    return _pack_whole(piece)


def unpack(packed: bytes, length: int) -> bytes:
    """Return the unpacked piece of ``length`` bytes. At most one byte more is decompressed.

    Raises:
        ArchiveCorrupt: the packed piece is damaged, or its unpacked length is another.
    """
    if len(packed) > 1 + length:
        raise ArchiveCorrupt(f"a piece of {length} bytes takes {len(packed)} packed")
    split = packed[:1] == _SPLIT and length >= _SPLIT_FROM
    data = _unsplit(packed[1:], length) if split else _unpack_whole(packed, length)
    if len(data) != length:
        raise ArchiveCorrupt(f"a piece has {len(data)} bytes and not {length}")
    return data


def _pack_whole(piece: bytes) -> bytes:
    return min(_PLAIN + piece, _zstd(piece), _huffman(piece), key=len)


def _unpack_whole(packed: bytes, length: int) -> bytes:
    """Unpack a piece that is not split; a compressed one to exactly ``length`` bytes.

    Raises:
        ArchiveCorrupt: the piece cannot be decompressed, or its coding is unknown.
    """
    tag, data = packed[:1], packed[1:]
    try:
        if tag == _PLAIN:
            return data
        if tag == _ZSTD:
            # zstd allocates the size that the frame claims, even above max_output_size
            if zstandard.get_frame_parameters(data).content_size != length:
                raise ArchiveCorrupt("a piece claims another length")
            return zstandard.ZstdDecompressor().decompress(data, max_output_size=length, allow_extra_data=False)
        if tag == _HUFFMAN:
            return _unhuffman(data, length)
    except (zstandard.ZstdError, zlib.error) as error:
        raise ArchiveCorrupt(f"a piece cannot be decompressed: {error}") from error
    raise ArchiveCorrupt(f"a piece is of the unknown coding {tag!r}")


def _zstd(piece: bytes) -> bytes:
    return _ZSTD + zstandard.ZstdCompressor(level=_LEVEL).compress(piece)


def _huffman(piece: bytes) -> bytes:
    coder = zlib.compressobj(wbits=_RAW, memLevel=_MEMORY, strategy=zlib.Z_HUFFMAN_ONLY)
    return b"".join((_HUFFMAN, coder.compress(piece), coder.flush()))


def _unhuffman(data: bytes, length: int) -> bytes:
    decoder = zlib.decompressobj(_RAW)
    found = decoder.decompress(data, length + 1)  # + 1: a limit of 0 means none, and zlib needs room to see the end
    if not decoder.eof or decoder.unused_data or len(found) != length:
        raise ArchiveCorrupt("a piece ends too early or too late")
    return found


def _split(piece: bytes) -> bytes:
    """Split a piece: return the packed mask after its length, then the packed bytes that are not zero."""
    mask = int(piece.translate(_DIGITS), 2).to_bytes(_mask_bytes(len(piece)))
    packed = pack(mask)
    return b"".join((_SPLIT, len(packed).to_bytes(_LENGTH), packed, _pack_whole(piece.translate(None, b"\0"))))


def _unsplit(data: bytes, length: int) -> bytes:
    """Put a split piece of ``length`` bytes together; raise ArchiveCorrupt if it is damaged."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH])
    mask = int.from_bytes(unpack(data[_LENGTH:end], _mask_bytes(length)))
    if mask.bit_length() > length:
        raise ArchiveCorrupt("the mask of a piece is longer than the piece")
    count = mask.bit_count()
    others = _unpack_whole(data[end:], count)
    if len(others) != count:
        raise ArchiveCorrupt(f"a piece has {len(others)} bytes for the {count} of its mask")
    return format(mask, f"0{length}b").encode().translate(_ZEROS).replace(b"1", b"%c") % tuple(others)


def _mask_bytes(length: int) -> int:
    return (length + 7) // 8
