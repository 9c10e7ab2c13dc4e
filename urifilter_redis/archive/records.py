"""What a checkpoint keeps beside bitmaps: the records of ``replies`` and what was forgotten, as bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

from urifilter_redis.errors import ArchiveCorrupt

__all__ = [
    "check_replies",
    "forgotten_at",
    "read_forgotten",
    "read_replies",
    "record_time",
    "write_forgotten",
    "write_replies",
]

#: Lengths of a field and its record.
_LENGTHS = struct.Struct(">HI")

_FIELD = re.compile(rb"[0-9a-fA-F]+/\d+")

#: A score and a digest.
_FORGOTTEN = struct.Struct(">d16s")

#: What a second is behind the point of a score (``lua/_forgotten.lua``).
_SECOND = 2**-33

#: The first bytes of msgpack's numbers that Lua's cmsgpack makes of times in ms.
_NUMBERS = {0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}


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


def check_replies(data: bytes) -> None:
    """Check that all fields and records are such as the scripts write.

    Raises:
        ArchiveCorrupt: one is not.
    """
    for field, record in read_replies(data):
        if not _FIELD.fullmatch(field) or not record_time(record):
            raise ArchiveCorrupt(f"the kept replies have no record under {field[:40]!r}")


def write_forgotten(pairs: Iterable[tuple[bytes, float]]) -> bytes:
    """Return digests of 16 bytes with their scores."""
    return b"".join(_FORGOTTEN.pack(score, digest) for digest, score in pairs)


def read_forgotten(data: bytes) -> Iterator[tuple[bytes, float]]:
    """Yield digests and scores.

    Raises:
        ArchiveCorrupt: it ends within one.
    """
    if len(data) % _FORGOTTEN.size:
        raise ArchiveCorrupt("what was forgotten ends within a digest")
    for score, digest in _FORGOTTEN.iter_unpack(data):
        yield digest, score


def forgotten_at(score: float) -> float:
    """Return when something was forgotten, seconds since 1970, from its score."""
    return score % 1 / _SECOND


def record_time(record: bytes) -> float:
    """Return when a record of ``replies`` was made, ms: the second of its msgpack numbers; 0 if it is no record."""
    at, value = 0, 0.0
    for _ in range(2):
        kind = record[at : at + 1]
        if not kind:
            return 0
        if kind[0] < 0x80:  # noqa: PLR2004 - the number itself
            value, at = kind[0], at + 1
            continue
        form = _NUMBERS.get(kind[0])
        if form is None or len(record) < at + 1 + struct.calcsize(form):
            return 0
        (value,) = struct.unpack_from(form, record, at + 1)
        at += 1 + struct.calcsize(form)
    return value
