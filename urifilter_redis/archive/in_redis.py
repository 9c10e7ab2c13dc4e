"""Redis itself as archive: a hash a slice, beside the filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis import calls
from urifilter_redis.archive.manifest import Manifest
from urifilter_redis.errors import ArchiveCorrupt
from urifilter_redis.exchange import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.session import Session
    from urifilter_redis.state import ShardState
    from urifilter_redis.steps import Flow

__all__ = ["RedisArchive"]

_MANIFEST = "manifest"


class RedisArchive:
    """The default of rolling; see ``Archive``."""

    def write_piece(self, session: Session, shard: int, state: ShardState, number: int, packed: bytes) -> Flow[None]:
        """Write a field of the hash."""
        yield from self._write(session, shard, state, str(number), packed)

    def write_manifest(self, session: Session, shard: int, state: ShardState, manifest: Manifest) -> Flow[None]:
        """Write the field of the manifest."""
        yield from self._write(session, shard, state, _MANIFEST, manifest.to_json())

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | None]]:
        """Read the manifests of several slices."""
        found = yield from self._read(session, shard, epochs, _MANIFEST)
        return [_manifest(text) for text in found]

    def pieces(self, session: Session, shard: int, epochs: Sequence[int], number: int) -> Flow[list[bytes]]:
        """Read a piece of several slices."""
        return (yield from self._read(session, shard, epochs, str(number)))

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Delete the hash."""
        yield from ask(session, calls.store("delete", session.keys.shard(shard), state, epoch))

    def _write(self, session: Session, shard: int, state: ShardState, field: str, data: bytes) -> Flow[None]:
        call = calls.store("write", session.keys.shard(shard), state, state.epoch - 1, field, data)
        yield from ask(session, call)

    def _read(self, session: Session, shard: int, epochs: Sequence[int], field: str) -> Flow[list[bytes]]:
        keys = session.keys.shard(shard)
        found = yield from ask(session, *(("HGET", keys.archived(epoch), field) for epoch in epochs))
        return [each or b"" for each in found]


def _manifest(text: bytes) -> Manifest | None:
    try:
        return Manifest.from_json(text)
    except ArchiveCorrupt:
        return None
