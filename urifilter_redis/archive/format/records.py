"""What a checkpoint keeps beside bitmaps: the records of ``replies`` and what was forgotten, as bytes."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from urifilter_redis.archive.format.documents import MOST
from urifilter_redis.errors import ArchiveCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["forgotten_at", "record_time", "split_forgotten", "split_replies", "write_forgotten", "write_replies"]

#: Lengths of a field and its record.
_LENGTHS = struct.Struct(">HI")

#: Bytes that a field and its record may have: 500 answers take some 1,500.
LONGEST = 1 << 16

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


def split_replies(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the fields and records that are whole, and the bytes after them.

    Raises:
        ArchiveCorrupt: one is not such as the scripts write.
    """
    found, at = [], 0
    while at + _LENGTHS.size <= len(data):
        lengths = _LENGTHS.unpack_from(data, at)
        start, end = at + _LENGTHS.size, at + _LENGTHS.size + sum(lengths)
        if sum(lengths) > LONGEST:
            raise ArchiveCorrupt("the kept replies have a record of an impossible length")
        if end > len(data):
            break
        field, record = data[start : start + lengths[0]], data[start + lengths[0] : end]
        if not _FIELD.fullmatch(field) or not record_time(record):
            raise ArchiveCorrupt(f"the kept replies have no record under {field[:40]!r}")
        found.append((field, record))
        at = end
    return found, data[at:]


def write_forgotten(pairs: Iterable[tuple[bytes, float]]) -> bytes:
    """Return digests of 16 bytes with their scores."""
    return b"".join(_FORGOTTEN.pack(score, digest) for digest, score in pairs)


def split_forgotten(data: bytes) -> tuple[list[tuple[bytes, float]], bytes]:
    """Return the digests and scores that are whole, and the bytes after them.

    Raises:
        ArchiveCorrupt: a score is none.
    """
    whole = len(data) // _FORGOTTEN.size * _FORGOTTEN.size
    found = [(digest, score) for score, digest in _FORGOTTEN.iter_unpack(data[:whole])]
    if not all(0 <= score < MOST for _, score in found):
        raise ArchiveCorrupt("what was forgotten has a score that cannot be")
    return found, data[whole:]


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
