"""Closed slices in Redis itself: each slice is a hash beside the filter's keys."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from urifilter_redis.archive.contents import pack_all, read_manifest
from urifilter_redis.archive.format import documents
from urifilter_redis.archive.format.manifest import Content, Manifest, Piece
from urifilter_redis.archive.format.packing import unpack
from urifilter_redis.engine.queries import ask
from urifilter_redis.engine.steps import Work
from urifilter_redis.errors import ArchiveCorrupt
from urifilter_redis.protocol import calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.meta import ShardState

__all__ = ["RedisArchive"]

_MANIFEST = "manifest"


class RedisArchive:
    """Keeps closed slices in Redis, the default of rolling filters; see ``Archive`` for the methods."""

    at_once = 1  # clients that insert do this between two calls, so each part must be short

    def check(self, session: Session) -> Flow[None]:
        """Do nothing: Redis has the slices as long as it has the filter."""
        del session
        yield from ()

    def writer(self, session: Session, shard: int, state: ShardState) -> Flow[_Writer]:
        """Begin to write the hash of the slice."""
        yield from ()
        return _Writer(session, shard, state)

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | str]]:
        """Read the manifests of several slices."""
        found = yield from _read(session, shard, [(epoch, _MANIFEST) for epoch in epochs])
        return [read_manifest(text or None) for text in found]

    def read(self, session: Session, shard: int, manifest: Manifest, first: int, last: int) -> Flow[list[bytes]]:
        """Read and unpack pieces: each is a field of the slice's hash."""
        pieces = manifest.content.pieces[first:last]
        wanted = [(manifest.epoch, str(first + n)) for n in range(len(pieces))]
        packed = yield from _read(session, shard, wanted)
        return [piece.unpack(data) for piece, data in zip(pieces, packed, strict=True)]

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Delete the slice's hash."""
        yield from ask(session, calls.store("delete", session.keys.shard(shard), state, epoch))


class _Writer:
    """Writes the fields of a slice's hash. A fenced script writes each field.

    Fields that an earlier attempt has written stay, if they have the bytes of the slice.
    """

    def __init__(self, session: Session, shard: int, state: ShardState) -> None:
        self._session, self._shard, self._state = session, shard, state
        self._epoch = state.epoch_of("history_1")
        self._pieces: list[Piece] = []

    def write(self, pieces: Sequence[bytes]) -> Flow[None]:
        """Write each piece, packed, as a field, and read it back."""
        fields = [str(len(self._pieces) + n) for n in range(len(pieces))]
        packed = yield from self._read(fields)
        new = [n for n, data in enumerate(packed) if not _holds(data, pieces[n])]
        if new:
            made = yield Work("pack", functools.partial(pack_all, [pieces[n] for n in new]))
            yield from self._store({fields[n]: data for n, data in zip(new, made, strict=True)})
            packed = yield from self._read(fields)
        found = list(map(Piece.of, pieces, packed))
        for n in new:
            found[n].unpack(packed[n])
        self._pieces += found

    def finish(self) -> Flow[Content]:
        """Return the content, which was read back already."""
        yield from ()
        return Content("", self._pieces)

    def publish(self, manifest: Manifest) -> Flow[None]:
        """Write the field of the manifest."""
        yield from self._store({_MANIFEST: documents.dump(manifest)})

    def abandon(self) -> Flow[None]:
        """Leave the fields in Redis: the next attempt overwrites them."""
        yield from ()

    def _read(self, fields: Sequence[str]) -> Flow[list[bytes]]:
        return (yield from _read(self._session, self._shard, [(self._epoch, field) for field in fields]))

    def _store(self, fields: Mapping[str, bytes]) -> Flow[None]:
        keys = self._session.keys.shard(self._shard)
        made = (calls.store("write", keys, self._state, self._epoch, *field) for field in fields.items())
        yield from ask(self._session, *made)


def _holds(packed: bytes, piece: bytes) -> bool:
    """Whether a packed piece, which may be missing or damaged, is this one."""
    try:
        return unpack(packed, len(piece)) == piece
    except ArchiveCorrupt:
        return False


def _read(session: Session, shard: int, wanted: Sequence[tuple[int, str]]) -> Flow[list[bytes]]:
    keys = session.keys.shard(shard)
    found = yield from ask(session, *(("HGET", keys.archived(epoch), field) for epoch, field in wanted))
    return [each or b"" for each in found]
