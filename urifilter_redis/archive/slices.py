"""The archive of the closed slices of a rolling filter: compressed until the next history is built from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from urifilter_redis.archive.register import require_archive
from urifilter_redis.archive.slices_in_home import HomeArchive
from urifilter_redis.archive.slices_in_redis import RedisArchive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.archive.format.manifest import Content, Manifest
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.meta import ShardState

__all__ = ["Archive", "SliceWriter", "archive_of"]


class SliceWriter(Protocol):
    """Writes one closed slice into the archive; the methods are flows."""

    def write(self, pieces: Sequence[bytes]) -> Flow[None]:
        """Append pieces of the bitmap."""
        ...

    def finish(self) -> Flow[Content]:
        """Make the pieces durable, read them back, and return the content.

        Raises:
            ArchiveCorrupt: the bytes that were read differ from those that were written.
        """
        ...

    def publish(self, manifest: Manifest) -> Flow[None]:
        """Write the manifest, from which on the archive has the slice.

        Raises:
            RotationConflict: another process has archived this slice meanwhile.
            ArchiveMissing: the archive is missing, or does not have the filter any more; the slice is not there.
        """
        ...

    def abandon(self) -> Flow[None]:
        """Remove the written pieces, unless the slice was published."""
        ...


class Archive(Protocol):
    """The archive of a filter's closed slices; all methods are flows.

    Only a rotation under way writes and deletes. ``state`` is the shard's state: its epoch and the rotation's token
    are the fence of each write in Redis.

    Attributes:
        at_once: the most pieces that are read or written between two rests of a rotation.
    """

    at_once: int

    def check(self, session: Session) -> Flow[None]:
        """Check that the archive can be reached and has this filter, before a missing slice counts as lost.

        Raises:
            ArchiveMissing: the archive is missing, or does not have this filter.
        """
        ...

    def writer(self, session: Session, shard: int, state: ShardState) -> Flow[SliceWriter]:
        """Begin to archive the slice that the rotation has closed.

        If the archive has a slice of this epoch already, both are merged by OR.

        Raises:
            ArchiveMissing: as ``check``.
        """
        ...

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | str]]:
        """Return the manifest of each epoch's slice, or a text that says why it is missing or cannot be read."""
        ...

    def read(self, session: Session, shard: int, manifest: Manifest, first: int, last: int) -> Flow[list[bytes]]:
        """Return the pieces ``first`` to ``last - 1`` of a slice, unpacked and checked.

        Raises:
            ArchiveMissing: a piece is missing.
            ArchiveCorrupt: a piece is damaged.
        """
        ...

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Remove the slice of an epoch that has expired; do nothing if the archive does not have it."""
        ...


def archive_of(session: Session) -> Archive:
    """Return the archive of the filter's closed slices: Redis, or the home that the caller named.

    Raises:
        ArchiveMissing: the filter was created without an archive, or the caller has not named it.
    """
    return RedisArchive() if session.config.archive == "redis" else HomeArchive(require_archive(session))
