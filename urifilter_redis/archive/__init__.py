"""Where the closed slices of a rolling filter sleep, compressed, until the next history is built of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from urifilter_redis.archive.in_redis import RedisArchive
from urifilter_redis.errors import ArchiveMissing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.archive.manifest import Manifest
    from urifilter_redis.session import Session
    from urifilter_redis.state import ShardState
    from urifilter_redis.steps import Flow

__all__ = ["Archive", "archive_of"]


class Archive(Protocol):
    """A home for closed slices; all methods are flows.

    A slice is written in pieces, then its manifest, which makes it be there. Only a rotation under way writes and
    deletes; ``state`` is the shard's, whose epoch and token fence it.
    """

    def write_pieces(self, session: Session, shard: int, state: ShardState, pieces: Mapping[int, bytes]) -> Flow[None]:
        """Write packed pieces, by number, of the slice that the rotation has closed."""
        ...

    def write_manifest(self, session: Session, shard: int, state: ShardState, manifest: Manifest) -> Flow[None]:
        """Write the manifest, after all pieces."""
        ...

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | None]]:
        """Read manifests; None for each slice that is not there or whose manifest cannot be read."""
        ...

    def read_pieces(self, session: Session, shard: int, wanted: Sequence[tuple[int, int]]) -> Flow[list[bytes]]:
        """Read packed pieces, each of an epoch and a number; empty where there is none."""
        ...

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Remove a slice that has expired; there may be none."""
        ...


def archive_of(session: Session) -> Archive:
    """Return the archive that the filter needs.

    Raises:
        ArchiveMissing: this version does not know it.
    """
    if session.config.archive == "redis":
        return RedisArchive()
    raise ArchiveMissing(f"{session.where}: needs the archive {session.config.archive!r}, which is not known here")
