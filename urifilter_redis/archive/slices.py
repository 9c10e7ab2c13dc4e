"""Where the closed slices of a rolling filter sleep, compressed, until the next history is built of them."""

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
    """A closed slice on its way into the archive; the methods are flows."""

    def write(self, pieces: Sequence[bytes]) -> Flow[None]:
        """Append pieces of the bitmap."""
        ...

    def finish(self) -> Flow[Content]:
        """Make them durable, read them back, and return what they are.

        Raises:
            ArchiveCorrupt: they were not read back as they were written.
        """
        ...

    def publish(self, manifest: Manifest) -> Flow[None]:
        """Make the slice be there.

        Raises:
            RotationConflict: somebody else has archived this slice meanwhile.
            ArchiveMissing: the archive is not there, or is not the filter's any more; nor is the slice there.
        """
        ...

    def abandon(self) -> Flow[None]:
        """Remove what was written and not published."""
        ...


class Archive(Protocol):
    """A home for closed slices; all methods are flows.

    Only a rotation under way writes and deletes; ``state`` is the shard's, whose epoch and token fence it.
    """

    def check(self, session: Session) -> Flow[None]:
        """Check that it is there, and the filter's: one that is away has lost nothing.

        Raises:
            ArchiveMissing: it is not.
        """
        ...

    def writer(self, session: Session, shard: int, state: ShardState) -> Flow[SliceWriter]:
        """Begin to archive the slice that the rotation has closed; into what is there already it is merged.

        Raises:
            ArchiveMissing: as ``check``.
        """
        ...

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | str]]:
        """Read manifests; for each slice that is not there, or whose manifest cannot be read, say so."""
        ...

    def read(self, session: Session, shard: int, manifest: Manifest, first: int, last: int) -> Flow[list[bytes]]:
        """Read pieces from number ``first`` to before ``last``, checked.

        Raises:
            ArchiveMissing: one is not there.
            ArchiveCorrupt: one is not what it must be.
        """
        ...

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Remove a slice that has expired; there may be none."""
        ...


def archive_of(session: Session) -> Archive:
    """Return the archive that the filter needs.

    Raises:
        ArchiveMissing: the caller has not named it.
    """
    return RedisArchive() if session.config.archive == "redis" else HomeArchive(require_archive(session))
