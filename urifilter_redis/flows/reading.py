"""Read and count bitmaps and leases in pieces, so that no piece holds the server for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from urifilter_redis.bloom.sizing import Slice, items_from_fill
from urifilter_redis.engine.queries import ENTRIES_A_SCAN, ask, ask_each, chunked, scan
from urifilter_redis.engine.retry import Request, exchange
from urifilter_redis.engine.steps import REST, Flow
from urifilter_redis.errors import SliceLost
from urifilter_redis.protocol.keys import ShardKeys
from urifilter_redis.protocol.outcomes import to_mapping
from urifilter_redis.storage.blobs import PIECES_AT_ONCE, Writer, as_numbers, nothing
from urifilter_redis.storage.documents import Content, piece_spans
from urifilter_redis.storage.records import ALONE, Lease
from urifilter_redis.storage.slices import SliceWriter

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

#: Most pieces that are counted in one pipeline.
PIECES_A_PIPELINE = 64

#: For each byte, how many of its two counters are over 0.
_COUNTERS = bytes((byte >> 4 > 0) + (byte & 15 > 0) for byte in range(256))

#: The COUNT of the first HSCAN. Four items with their payloads have at most 512 KiB.
FIRST_COUNT = 4

#: About the most bytes of a reply: the COUNT doubles after a reply of less than half of it, and halves after a longer
#: reply.
REPLY_BYTES = 1 << 20

#: Most texts in fields of their own that are read in one pipeline; together at most 1 MiB.
TEXTS_A_PIPELINE = 8

#: The bytes of a field with an entry; the field of a text is longer.
_DIGEST = 16


def pieces_of(
    session: Session, key: str, spans: Sequence[tuple[int, int]], otherwise: Callable[[], Flow[None]] = nothing
) -> Flow[list[bytes]]:
    """Return pieces of a live slice's bitmap; ``spans`` are their offsets and lengths, bytes.

    If a piece is missing, the flow ``otherwise`` runs. It raises its own error if the slice was only renamed.

    Raises:
        SliceLost: the bitmap is missing or has another length.
    """
    pieces = yield from _read(session, key, spans)
    if [len(piece) for piece in pieces] != [length for _, length in spans]:
        yield from otherwise()
        raise SliceLost(f"{session.where}: {key} is missing or has another length: restore or drop the filter")
    return pieces


def bits_of(session: Session, key: str, spans: Sequence[tuple[int, int]]) -> Flow[list[int]]:
    """Return pieces of a bitmap as integers, so that ``|`` merges two pieces."""
    return as_numbers((yield from _read(session, key, spans)))


def archive_bitmaps(  # noqa: PLR0913 - each is needed
    session: Session,
    keys: Sequence[str],
    size: int,
    writer: Writer | SliceWriter,
    otherwise: Callable[[], Flow[None]],
    *,
    at_once: int = PIECES_AT_ONCE,
) -> Flow[Content]:
    """Write live bitmaps of ``size`` bytes, one after the other, into one content of an archive, and return it.

    A step has ``at_once`` pieces. Raises as ``pieces_of``.
    """
    for key in keys:
        for spans in chunked(list(piece_spans(size)), at_once):
            yield from writer.write((yield from pieces_of(session, key, spans, otherwise)))
            yield REST
    return (yield from writer.finish())


def items_in_module(session: Session, key: str, slice_: Slice) -> Flow[int | None]:
    """Return the number of items of a segment of a slice of layout redisbloom, whose key is given.

    None: it is missing, or another program made it.
    """
    request = Request.of(("BF.INFO", key))
    yield from exchange(session, [request])
    if request.error is not None:
        if isinstance(request.error, SliceLost) or "not found" in str(request.error):
            return None
        raise request.error
    told = to_mapping(request.reply)
    times, rest = divmod(int(told["Capacity"]), slice_.units)
    ours = not rest and times and not times & (times + 1)  # the module's growth doubles: 1, 3, 7 … times
    return int(told["Number of items inserted"]) if ours else None


def fill_of(session: Session, keys: ShardKeys, slice_: Slice) -> Flow[float]:
    """Return the share of a slice's bits that are set (counting: of its counters that are over 0)."""
    layout, found = session.config.layout, 0
    for key in map(keys.slice, slice_.names):
        for spans in chunked(list(piece_spans(slice_.size)), 1 if layout == "counting" else PIECES_A_PIPELINE):
            if layout == "counting":
                (piece,) = yield from _read(session, key, spans)
                counted = piece.translate(_COUNTERS)
                found += counted.count(1) + 2 * counted.count(2)
            else:
                found += sum((yield from ask(session, *(("BITCOUNT", key, *_ends(each)) for each in spans))))
    whole = slice_.whole
    return found / (8 * whole.size if layout == "blocked" else whole.units)


def items_in(session: Session, keys: ShardKeys, slice_: Slice) -> Flow[int | None]:
    """Return the estimated number of items of a slice; None if all its bits are set, as with any large number."""
    fill, config = (yield from fill_of(session, keys, slice_)), session.config
    return round(items_from_fill(config.layout, config.k, slice_.whole.units, fill)) if fill < 1 else None


def read_leases(session: Session, key: str, use: Callable[[list[Lease]], Flow[None]]) -> Flow[None]:
    """Read a shard's ``leases``; run the flow ``use`` with each list of items.

    An item that is in flight during the whole reading is read, perhaps twice. Its entry is read together with its text.
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
        size = sum(len(field) + len(value) for field, value in fields)
        if size > REPLY_BYTES:
            count = max(1, count // 2)
        elif size < REPLY_BYTES // 2:
            count = min(2 * count, ENTRIES_A_SCAN)


def _with_texts(session: Session, key: str, digests: list[bytes]) -> Flow[list[Lease]]:
    """Read entries together with their texts, but for those that were removed meanwhile."""
    asked = [("HMGET", key, digest, digest + b"+") for digest in digests]
    pairs = zip(digests, (yield from ask_each(session, asked, TEXTS_A_PIPELINE)), strict=True)
    return [(digest, entry, text or b"") for digest, (entry, text) in pairs if entry is not None]


def _read(session: Session, key: str, spans: Sequence[tuple[int, int]]) -> Flow[list[bytes]]:
    return (yield from ask(session, *(("GETRANGE", key, *_ends(each)) for each in spans)))


def _ends(span: tuple[int, int]) -> tuple[str, str]:
    """Return the first and the last position of a span, which is a position and a length."""
    at, length = span
    return str(at), str(at + length - 1)
