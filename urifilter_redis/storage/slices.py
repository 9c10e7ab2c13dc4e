"""The archive of the closed slices of a rolling filter: compressed until the next history is built from them.

In Redis a slice is a hash beside the filter's keys; in a folder or MongoDB a blob with its document. Both archives have
the same methods, which are flows. Only a rotation under way writes and deletes. ``state`` is the shard's state: its
epoch and the rotation's token are the fence of each write in Redis.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from urifilter_redis.engine.backend import Backend, Key, read_to_replace
from urifilter_redis.engine.queries import ask
from urifilter_redis.engine.steps import Flow, Work
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing, RotationConflict
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.storage import documents
from urifilter_redis.storage.blobs import PIECES_AT_ONCE, Writer, as_numbers, read_pieces
from urifilter_redis.storage.documents import Content, Manifest, Piece, is_blob_of
from urifilter_redis.storage.packing import pack, unpack
from urifilter_redis.storage.registry import check_registered, publish, require_archive

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

log = logging.getLogger("urifilter_redis")

Archive: TypeAlias = "RedisArchive | BackendArchive"
SliceWriter: TypeAlias = "_RedisWriter | _BackendWriter"

#: The field of a slice's hash in Redis that has its manifest.
_MANIFEST = "manifest"


def archive_of(session: Session) -> Archive:
    """Return the archive of the filter's closed slices: Redis, or the backend that the caller named.

    Raises:
        ArchiveMissing: the filter was created without an archive, or the caller has not named it.
    """
    return RedisArchive() if session.config.archive == "redis" else BackendArchive(require_archive(session))


class BackendArchive:
    """Keeps closed slices in a backend.

    Attributes:
        at_once: the most pieces that are read or written between two rests of a rotation.
    """

    at_once = PIECES_AT_ONCE

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def check(self, session: Session) -> Flow[None]:
        """Check that the archive can be reached and has this filter, before a missing slice counts as lost.

        Raises:
            ArchiveMissing: the archive is missing, or does not have this filter.
        """
        yield from check_registered(session)

    def writer(self, session: Session, shard: int, state: ShardState) -> Flow[_BackendWriter]:
        """Begin to archive the slice that the rotation has closed.

        A slice of this epoch that the archive has already is merged into the new one by OR.

        Raises:
            ArchiveMissing: as ``check``.
        """
        yield from check_registered(session)
        key = _key(session, shard, state.epoch_of("history_1"))
        text, problem = yield from read_to_replace(self._backend, key)
        archived: Manifest | None = None
        try:
            if text is not None and not problem:
                archived = documents.load(Manifest, text, f"slice {key.epoch}")
                archived.check(session.config, shard, state.view.slices[-1], kind="slice", epoch=key.epoch)
        except ArchiveCorrupt as error:
            archived, problem = None, str(error)
        if problem:
            log.warning("%s: %s: the slice is written anew", session.where, problem)
        return _BackendWriter(self._backend, key, text, archived)

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | str]]:
        """Return the manifest of each epoch's slice, or a text that says why it is missing or cannot be read."""
        found: list[Manifest | str] = []
        for epoch in epochs:
            text, problem = yield from read_to_replace(self._backend, _key(session, shard, epoch))
            found.append(problem or _manifest_in(text))
        return found

    def read(self, session: Session, shard: int, manifest: Manifest, first: int, last: int) -> Flow[list[bytes]]:
        """Return the pieces ``first`` to ``last - 1`` of a slice, unpacked and checked.

        Raises:
            ArchiveMissing: a piece is missing.
            ArchiveCorrupt: a piece is damaged.
        """
        del shard
        return (yield from read_pieces(self._backend, session.keys.name, manifest.content, first, last))

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Remove the slice of an epoch that has expired; do nothing if the archive does not have it."""
        del state
        key = _key(session, shard, epoch)
        text, _ = yield from read_to_replace(self._backend, key)
        if text is not None and (yield from self._backend.swap(key, text, None)):
            yield from self._backend.delete(key.filter, _blobs_in(text))


class _BackendWriter:
    """Writes a slice as a blob, and merges the archived slice of this epoch into it, so that no bit is lost.

    Args:
        backend: the backend of the archive.
        key: the key of the slice's document.
        text: the document that the new one replaces; None: there is none.
        archived: the manifest that the document holds; None: there is none, or it is damaged.
    """

    def __init__(self, backend: Backend, key: Key, text: bytes | None, archived: Manifest | None) -> None:
        self._backend, self._key, self._text, self._archived = backend, key, text, archived
        self._writer = Writer(backend, key.filter, key.uid)
        self._written = 0
        self._published = False

    def write(self, pieces: Sequence[bytes]) -> Flow[None]:
        """Append pieces of the bitmap."""
        first = self._written
        self._written += len(pieces)
        yield from self._writer.write((yield from self._merged(first, pieces)))

    def finish(self) -> Flow[Content]:
        """Make the pieces durable, read them back, and return the content.

        Raises:
            ArchiveCorrupt: the bytes that were read differ from those that were written.
        """
        return (yield from self._writer.finish())

    def publish(self, manifest: Manifest) -> Flow[None]:
        """Write the document, from which on the archive has the slice; remove the blob of the document before.

        Raises:
            RotationConflict: another process has archived this slice meanwhile.
            ArchiveMissing: the archive is missing, or does not have the filter any more; the slice is not there.
        """
        self._writer.check_age()
        self._published = True  # after an error other than ArchiveMissing the document may name the blob
        try:
            self._published = yield from publish(self._backend, self._key, self._text, documents.dump(manifest))
        except ArchiveMissing:
            self._published = False
            raise
        if not self._published:
            raise RotationConflict(f"slice {self._key.epoch}: another process has archived it meanwhile")
        yield from self._backend.delete(self._key.filter, _blobs_in(self._text))

    def abandon(self) -> Flow[None]:
        """Remove the blob, unless a document may name it."""
        if not self._published:
            yield from self._writer.abandon()

    def _merged(self, first: int, pieces: Sequence[bytes]) -> Flow[Sequence[bytes]]:
        if self._archived is None:
            return pieces
        try:
            last = first + len(pieces)
            old = yield from read_pieces(self._backend, self._key.filter, self._archived.content, first, last)
        except (ArchiveCorrupt, ArchiveMissing) as error:
            log.warning("slice %d of %s: %s: the slice is written anew", self._key.epoch, self._key.filter, error)
            return pieces
        both = zip(as_numbers(pieces), as_numbers(old), map(len, pieces), strict=True)
        return [(one | other).to_bytes(length, "little") for one, other, length in both]


def _key(session: Session, shard: int, epoch: int) -> Key:
    return Key(session.keys.name, "slice", session.config.uid, shard, epoch)


def _manifest_in(text: bytes | None) -> Manifest | str:
    """Return the manifest that a text holds, or a text that says why it holds none."""
    try:
        return documents.load(Manifest, text, "its manifest") if text else "it is missing"
    except ArchiveCorrupt as error:
        return str(error)


def _blobs_in(text: bytes | None) -> list[str]:
    """Return the blob that a document names. A damaged document names none; ``prune`` removes its blob later."""
    found = _manifest_in(text)
    return [found.content.blob] if isinstance(found, Manifest) and is_blob_of(found.uid, found.content.blob) else []


class RedisArchive:
    """Keeps closed slices in Redis, the default of rolling filters; see ``BackendArchive`` for the methods."""

    at_once = 1  # clients that insert do this between two calls, so each part must be short

    def check(self, session: Session) -> Flow[None]:
        """Do nothing: Redis has the slices as long as it has the filter."""
        del session
        yield from ()

    def writer(self, session: Session, shard: int, state: ShardState) -> Flow[_RedisWriter]:
        """Begin to write the hash of the slice."""
        yield from ()
        return _RedisWriter(session, shard, state)

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | str]]:
        """Read the manifests of several slices."""
        found = yield from _read(session, shard, [(epoch, _MANIFEST) for epoch in epochs])
        return list(map(_manifest_in, found))

    def read(self, session: Session, shard: int, manifest: Manifest, first: int, last: int) -> Flow[list[bytes]]:
        """Read and unpack pieces: each is a field of the slice's hash."""
        pieces = manifest.content.pieces[first:last]
        wanted = [(manifest.epoch, str(first + n)) for n in range(len(pieces))]
        packed = yield from _read(session, shard, wanted)
        return list(map(Piece.unpack, pieces, packed))

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Delete the slice's hash."""
        yield from ask(session, calls.store("delete", session.keys.shard(shard), state, epoch))


class _RedisWriter:
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
            made = yield Work("pack", lambda: [pack(pieces[n]) for n in new])
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
    """Read fields of slices' hashes, each given by epoch and name; a missing one is empty."""
    keys = session.keys.shard(shard)
    found = yield from ask(session, *(("HGET", keys.archived(epoch), field) for epoch, field in wanted))
    return [each or b"" for each in found]
