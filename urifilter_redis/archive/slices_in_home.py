"""Closed slices in a folder or in MongoDB: each slice is a blob and a document that names it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from urifilter_redis.archive.contents import PIECES_AT_ONCE, Writer, as_numbers, read_manifest, read_pieces
from urifilter_redis.archive.format import documents
from urifilter_redis.archive.format.manifest import Content, Manifest, is_blob_of
from urifilter_redis.archive.register import check_registered, publish
from urifilter_redis.engine.backend import Key, read_to_replace
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing, RotationConflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.backend import Home
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.meta import ShardState

__all__ = ["HomeArchive"]

log = logging.getLogger("urifilter_redis")


class HomeArchive:
    """Keeps closed slices in a home; see ``Archive`` for the methods."""

    at_once = PIECES_AT_ONCE

    def __init__(self, home: Home) -> None:
        self._home = home

    def check(self, session: Session) -> Flow[None]:
        """Read the filter's registration and compare its uid."""
        yield from check_registered(session)

    def writer(self, session: Session, shard: int, state: ShardState) -> Flow[_Writer]:
        """Begin a blob, and read the slice of this epoch that the archive may have already."""
        yield from check_registered(session)
        key = _key(session, shard, state.epoch_of("history_1"))
        text, problem = yield from read_to_replace(self._home, key)
        there: Manifest | None = None
        try:
            if text is not None and not problem:
                there = documents.load(Manifest, text, f"slice {key.epoch}")
                there.check(session.config, shard, state.view.slices[-1], kind="slice", epoch=key.epoch)
        except ArchiveCorrupt as error:
            there, problem = None, str(error)
        if problem:
            log.warning("%s: %s: the slice is written anew", session.where, problem)
        return _Writer(self._home, key, session.config.uid, text, there)

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | str]]:
        """Read the document of each slice."""
        found: list[Manifest | str] = []
        for epoch in epochs:
            text, problem = yield from read_to_replace(self._home, _key(session, shard, epoch))
            found.append(problem or read_manifest(text))
        return found

    def read(self, session: Session, shard: int, manifest: Manifest, first: int, last: int) -> Flow[list[bytes]]:
        """Read and unpack pieces of the slice's blob."""
        del shard
        return (yield from read_pieces(self._home, session.keys.name, manifest.content, first, last))

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Delete the document, then the blob."""
        del state
        key = _key(session, shard, epoch)
        text, _ = yield from read_to_replace(self._home, key)
        if text is not None and (yield from self._home.swap(key, text, None)):
            yield from self._home.delete(key.filter, _blobs(text))


class _Writer:
    """Writes a slice as a blob, and merges the archived slice of this epoch into it, so that no bit is lost."""

    def __init__(self, home: Home, key: Key, uid: str, text: bytes | None, there: Manifest | None) -> None:
        self._home, self._key, self._text, self._there = home, key, text, there
        self._writer = Writer(home, key.filter, uid)
        self._written = 0
        self._published = False

    def write(self, pieces: Sequence[bytes]) -> Flow[None]:
        """Merge pieces with those of the archived slice, and append them."""
        first = self._written
        self._written += len(pieces)
        yield from self._writer.write((yield from self._merged(first, pieces)))

    def finish(self) -> Flow[Content]:
        """Make the blob durable, read it back, and return the content."""
        return (yield from self._writer.finish())

    def publish(self, manifest: Manifest) -> Flow[None]:
        """Write the document that names the blob; remove the blob of the document that it replaces."""
        self._writer.check_age()
        self._published = True  # after an error other than ArchiveMissing the document may name the blob
        try:
            done = yield from publish(self._home, self._key, self._text, documents.dump(manifest))
        except ArchiveMissing:
            self._published = False
            raise
        if not done:
            self._published = False
            raise RotationConflict(f"slice {self._key.epoch}: another process has archived it meanwhile")
        yield from self._home.delete(self._key.filter, _blobs(self._text))

    def abandon(self) -> Flow[None]:
        """Remove the blob, unless a document may name it."""
        if not self._published:
            yield from self._writer.abandon()

    def _merged(self, first: int, pieces: Sequence[bytes]) -> Flow[Sequence[bytes]]:
        if self._there is None:
            return pieces
        try:
            last = first + len(pieces)
            old = yield from read_pieces(self._home, self._key.filter, self._there.content, first, last)
        except (ArchiveCorrupt, ArchiveMissing) as error:
            log.warning("slice %d of %s: %s: the slice is written anew", self._key.epoch, self._key.filter, error)
            return pieces
        both = zip(as_numbers(pieces), as_numbers(old), map(len, pieces), strict=True)
        return [(new | there).to_bytes(length, "little") for new, there, length in both]


def _key(session: Session, shard: int, epoch: int) -> Key:
    return Key(session.keys.name, "slice", session.config.uid, shard, epoch)


def _blobs(text: bytes | None) -> list[str]:
    """Return the blob that a document names. A damaged document names none; ``prune`` removes its blob later."""
    found = read_manifest(text)
    return [found.content.blob] if isinstance(found, Manifest) and is_blob_of(found.uid, found.content.blob) else []
