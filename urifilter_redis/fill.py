"""How full a bitmap is, counted in pieces, so that the server is never held for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis.archive.format.manifest import piece_spans
from urifilter_redis.engine.queries import ask

if TYPE_CHECKING:
    from urifilter_redis.bloom.sizing import Slice
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow

__all__ = ["fill_of"]

#: Pieces that are counted in one pipeline.
PIECES_A_PIPELINE = 64

#: How many of the counters of a byte are over 0.
_COUNTERS = bytes((byte >> 4 > 0) + (byte & 15 > 0) for byte in range(256))


def fill_of(session: Session, key: str, slice_: Slice) -> Flow[float]:
    """Return the share of a bitmap's bits that are set; counting: of its counters that are over 0."""
    if session.config.layout == "counting":
        return (yield from _counters_over_0(session, key, slice_))
    spans = list(piece_spans(slice_.size))
    bits = 0
    for start in range(0, len(spans), PIECES_A_PIPELINE):
        some = spans[start : start + PIECES_A_PIPELINE]
        bits += sum((yield from ask(session, *(("BITCOUNT", key, at, at + length - 1) for at, length in some))))
    return bits / (slice_.units if session.config.layout == "classic" else 8 * slice_.size)


def _counters_over_0(session: Session, key: str, slice_: Slice) -> Flow[float]:
    found = 0
    for at, length in piece_spans(slice_.size):
        (piece,) = yield from ask(session, ("GETRANGE", key, at, at + length - 1))
        counted = piece.translate(_COUNTERS)
        found += counted.count(1) + 2 * counted.count(2)
    return found / slice_.units
