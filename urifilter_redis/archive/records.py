"""What a checkpoint keeps beside bitmaps: the records of ``replies`` and what was forgotten, as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from urifilter_redis.errors import ArchiveCorrupt

__all__ = ["read_forgotten", "read_replies", "write_forgotten", "write_replies"]

#: Lengths of a field and its record.
_LENGTHS = struct.Struct(">HI")

#: An epoch and a digest.
_FORGOTTEN = struct.Struct(">Q16s")


def write_replies(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return fields and records, each with its length before it."""
    return b"".join(_LENGTHS.pack(len(field), len(record)) + field + record for field, record in pairs)


def read_replies(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield fields and records.

    Raises:
        ArchiveCorrupt: it ends within one.
    """
    at = 0
    while at < len(data):
        if at + _LENGTHS.size > len(data):
            raise ArchiveCorrupt("the kept replies end within a record")
        field, record = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        if at + field + record > len(data):
            raise ArchiveCorrupt("the kept replies end within a record")
        yield data[at : at + field], data[at + field : at + field + record]
        at += field + record


def write_forgotten(pairs: Iterable[tuple[bytes, float]]) -> bytes:
    """Return digests of 16 bytes with the epochs in which they were forgotten."""
    return b"".join(_FORGOTTEN.pack(int(epoch), digest) for digest, epoch in pairs)


def read_forgotten(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield digests and epochs.

    Raises:
        ArchiveCorrupt: it ends within one.
    """
    if len(data) % _FORGOTTEN.size:
        raise ArchiveCorrupt("what was forgotten ends within a digest")
    for epoch, digest in _FORGOTTEN.iter_unpack(data):
        yield digest, epoch
