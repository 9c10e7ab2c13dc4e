"""Bitmaps and leases are read and counted in pieces, so that the server is never held for long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from urifilter_redis.engine.queries import ENTRIES_A_SCAN, ask, chunked, scan
from urifilter_redis.engine.steps import REST
from urifilter_redis.errors import SliceLost
from urifilter_redis.storage.contents import nothing
from urifilter_redis.storage.documents import piece_spans
from urifilter_redis.storage.records import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.bloom.sizing import Slice
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.storage.documents import Content
    from urifilter_redis.storage.records import Lease

__all__ = ["archived", "fill_of", "pieces_of", "read_leases"]

#: Most pieces that are counted in one pipeline.
PIECES_A_PIPELINE = 64

#: For each byte, how many of its two counters are over 0.
_COUNTERS = bytes((byte >> 4 > 0) + (byte & 15 > 0) for byte in range(256))


class _Writer(Protocol):
    """A content on its way into an archive."""

    def write(self, pieces: Sequence[bytes]) -> Flow[None]: ...

    def finish(self) -> Flow[Content]: ...


def pieces_of(
    session: Session, key: str, spans: Sequence[tuple[int, int]], otherwise: Callable[[], Flow[None]] = nothing
) -> Flow[list[bytes]]:
    """Return pieces of a live slice's bitmap.

    Args:
        session: the filter's session.
        key: the bitmap's key.
        spans: the (offset, length) of each piece, in bytes.
        otherwise: a flow that runs if a piece is missing. It raises its own error if the slice was only renamed.

    Raises:
        SliceLost: the bitmap is missing or has another length.
    """
    pieces = yield from ask(session, *(("GETRANGE", key, at, at + length - 1) for at, length in spans))
    if [len(piece) for piece in pieces] != [length for _, length in spans]:
        yield from otherwise()
        raise SliceLost(f"{session.where}: {key} is missing or has another length: restore or drop the filter")
    return pieces


def archived(  # noqa: PLR0913, PLR0917 - likewise
    session: Session,
    key: str,
    size: int,
    writer: _Writer,
    otherwise: Callable[[], Flow[None]],
    at_once: int,
) -> Flow[Content]:
    """Write a live slice's bitmap of ``size`` bytes into an archive, ``at_once`` pieces a step; return its content.

    Raises as ``pieces_of``.
    """
    for spans in chunked(list(piece_spans(size)), at_once):
        yield from writer.write((yield from pieces_of(session, key, spans, otherwise)))
        yield REST
    return (yield from writer.finish())


def fill_of(session: Session, key: str, slice_: Slice) -> Flow[float]:
    """Return the share of a bitmap's bits that are set (counting: of its counters that are over 0)."""
    if session.config.layout == "counting":
        return (yield from _counters_over_0(session, key, slice_))
    spans = list(piece_spans(slice_.size))
    bits = 0
    for some in chunked(spans, PIECES_A_PIPELINE):
        bits += sum((yield from ask(session, *(("BITCOUNT", key, at, at + length - 1) for at, length in some))))
    return bits / (slice_.units if session.config.layout == "classic" else 8 * slice_.size)


def _counters_over_0(session: Session, key: str, slice_: Slice) -> Flow[float]:
    found = 0
    for at, length in piece_spans(slice_.size):
        (piece,) = yield from ask(session, ("GETRANGE", key, at, at + length - 1))
        counted = piece.translate(_COUNTERS)
        found += counted.count(1) + 2 * counted.count(2)
    return found / slice_.units


#: The COUNT of the first HSCAN. Four items with their payloads have at most 512 KiB.
FIRST_COUNT = 4

#: About the most bytes of a reply: the COUNT is doubled after a reply of less than half of it, and halved after a
#: longer one.
REPLY_BYTES = 1 << 20

#: Texts in fields of their own that are read in one pipeline: at most 1 MiB.
TEXTS_A_PIPELINE = 8

#: The bytes of a field with an entry. A text in a field of its own has a longer field.
_DIGEST = 16


def read_leases(session: Session, key: str, use: Callable[[list[Lease]], Flow[None]]) -> Flow[None]:
    """Read ``leases``.

    An item that is in hand during the whole reading is read, perhaps twice. Its entry is read together with its text.

    Args:
        session: the filter's session.
        key: the key of a shard's ``leases``.
        use: a flow to run with each list of items.
    """
    cursor, count = b"0", FIRST_COUNT
    while True:
        cursor, fields = yield from scan(session, "HSCAN", key, cursor, count)
        entries = [(field, entry) for field, entry in fields if len(field) == _DIGEST]
        found = [(digest, entry, b"") for digest, entry in entries if len(entry) > ALONE]
        found += yield from _with_texts(session, key, [digest for digest, entry in entries if len(entry) == ALONE])
        if found:
            yield from use(found)
        if int(cursor) == 0:
            return
        count = _next_count(count, sum(len(field) + len(value) for field, value in fields))


def _with_texts(session: Session, key: str, digests: list[bytes]) -> Flow[list[Lease]]:
    """Read entries together with their texts. What was taken out meanwhile is left out."""
    found: list[Lease] = []
    for some in chunked(digests, TEXTS_A_PIPELINE):
        replies = yield from ask(session, *(("HMGET", key, digest, digest + b"+") for digest in some))
        pairs = zip(some, replies, strict=True)
        found += [(digest, entry, text or b"") for digest, (entry, text) in pairs if entry is not None]
    return found


def _next_count(count: int, size: int) -> int:
    """Return the COUNT after a reply of ``size`` bytes."""
    if size > REPLY_BYTES:
        return max(1, count // 2)
    return min(2 * count, ENTRIES_A_SCAN) if size < REPLY_BYTES // 2 else count
