"""What a checkpoint has beside bitmaps, as bytes: records of calls, forgotten digests, leases and dead letters."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from urifilter_redis.errors import ArchiveCorrupt

#: The largest number in a document or a score: Lua and JSON hold all integers up to it exactly.
MOST = 2**53

#: The length of a field of ``replies`` and the length of its record.
_LENGTHS = struct.Struct(">HI")

#: The most bytes of a field with its record. 500 answers take some 1,500.
LONGEST = 1 << 16

#: A claimed item: its digest, its entry, and its text if that stands in a field of its own; else empty.
Lease: TypeAlias = tuple[bytes, bytes, bytes]

#: The digest of a claimed item, and the lengths of its entry and of its text.
_LEASE = struct.Struct(">16sHI")

#: The bytes of an entry whose text stands in a field of its own: holder, failures, lapses.
ALONE = 12

#: The most bytes of such a text; clients send at most 128 KiB.
LONGEST_TEXT = 16 << 20

_FIELD = re.compile(rb"[0-9a-fA-F]+/\d+")

#: The score and the digest of a forgotten item.
_FORGOTTEN = struct.Struct(">d16s")

#: One second in the fraction of a score, whose integer part is an epoch (see ``lua/_time.lua``).
_SECOND = 2**-33

#: The first byte of a number in msgpack, and its struct format: those that Lua's cmsgpack uses for times in ms.
_NUMBERS = {0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}


def _write_replies(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the fields of ``replies`` and their records as bytes, each pair after its two lengths."""
    return b"".join(_LENGTHS.pack(len(field), len(record)) + field + record for field, record in pairs)


def _split_replies(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the whole pairs of field and record at the beginning of some bytes, and the bytes after them.

    Raises:
        ArchiveCorrupt: the scripts cannot have written one of the records.
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


def _write_forgotten(pairs: Iterable[tuple[bytes, float | str | bytes]]) -> bytes:
    """Return digests of 16 bytes and their scores as bytes."""
    return b"".join(_FORGOTTEN.pack(float(score), digest) for digest, score in pairs)


def _split_forgotten(data: bytes) -> tuple[list[tuple[bytes, float]], bytes]:
    """Return the whole pairs of digest and score at the beginning of some bytes, and the bytes after them.

    Raises:
        ArchiveCorrupt: a score is impossible.
    """
    whole = len(data) // _FORGOTTEN.size * _FORGOTTEN.size
    found = [(digest, score) for score, digest in _FORGOTTEN.iter_unpack(data[:whole])]
    if not all(0 <= score < MOST for _, score in found):
        raise ArchiveCorrupt("a forgotten digest has an impossible score")
    return found, data[whole:]


def _write_leases(leases: Iterable[Lease]) -> bytes:
    """Return claimed items as bytes, each after its lengths."""
    return b"".join(_LEASE.pack(digest, len(entry), len(text)) + entry + text for digest, entry, text in leases)


def _split_leases(data: bytes) -> tuple[list[Lease], bytes]:
    """Return the whole claimed items at the beginning of some bytes, and the bytes after them.

    Raises:
        ArchiveCorrupt: the scripts cannot have written one of the entries.
    """
    found, at = [], 0
    while at + _LEASE.size <= len(data):
        digest, entry, text = _LEASE.unpack_from(data, at)
        middle = at + _LEASE.size + entry
        if entry < ALONE or text > LONGEST_TEXT or (text and entry > ALONE):
            raise ArchiveCorrupt("the leases have an entry of an impossible length")
        if middle + text > len(data):
            break
        found.append((digest, data[at + _LEASE.size : middle], data[middle : middle + text]))
        at = middle + text
    return found, data[at:]


def letters_of(pairs: Iterable[tuple[bytes, bytes]]) -> list[Lease]:
    """Return the fields of ``dead_letters`` in the form of claimed items, without the sum of their bytes."""
    return [(digest, text[:ALONE], text[ALONE:]) for digest, text in pairs if len(text) > ALONE]


@dataclass(frozen=True, slots=True)
class Records:
    """How a checkpoint keeps one kind of records.

    Attributes:
        write: returns records as bytes.
        split: returns the whole records at the beginning of some bytes, and the bytes after them. It raises
            ArchiveCorrupt if the scripts cannot have written one of them.
        limit: the most bytes of a shard's records.
    """

    write: Callable[[Iterable[Any]], bytes]
    split: Callable[[bytes], tuple[list[Any], bytes]]
    limit: int = 256 << 20


#: The kinds of records: pairs of field and record of a call; pairs of forgotten digest and score (11 million); leases
#: (7 million of 600 bytes, which are read some at a time); and dead letters, which have the form of leases.
KINDS: Mapping[str, Records] = {
    "replies": Records(_write_replies, _split_replies),
    "forgotten": Records(_write_forgotten, _split_forgotten),
    "leases": Records(_write_leases, _split_leases, limit=4 << 30),
    "dead_letters": Records(_write_leases, _split_leases),
}


def forgotten_at(score: float) -> float:
    """Return the earliest time at which a digest may have been forgotten, ms since 1970, from its score.

    The later an epoch, the fewer binary digits of the score are left for the time.
    """
    return 1000 * (score % 1 - math.ulp(score)) / _SECOND


def record_time(record: bytes) -> float:
    """Return the time of a call's record, ms since 1970: the second number in it; 0 if it is not a record."""
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
