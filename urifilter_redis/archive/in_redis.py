"""Redis itself as archive: a hash a slice, beside the filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis import calls
from urifilter_redis.archive.manifest import Manifest
from urifilter_redis.errors import ArchiveCorrupt
from urifilter_redis.exchange import ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.session import Session
    from urifilter_redis.state import ShardState
    from urifilter_redis.steps import Flow

__all__ = ["RedisArchive"]

_MANIFEST = "manifest"


class RedisArchive:
    """The default of rolling; see ``Archive``."""

    def write_pieces(self, session: Session, shard: int, state: ShardState, pieces: Mapping[int, bytes]) -> Flow[None]:
        """Write fields of the hash."""
        yield from self._write(session, shard, state, {str(number): packed for number, packed in pieces.items()})

    def write_manifest(self, session: Session, shard: int, state: ShardState, manifest: Manifest) -> Flow[None]:
        """Write the field of the manifest."""
        yield from self._write(session, shard, state, {_MANIFEST: manifest.to_json()})

    def manifests(self, session: Session, shard: int, epochs: Sequence[int]) -> Flow[list[Manifest | None]]:
        """Read the manifests of several slices."""
        found = yield from self._read(session, shard, [(epoch, _MANIFEST) for epoch in epochs])
        return [_manifest(text) for text in found]

    def read_pieces(self, session: Session, shard: int, wanted: Sequence[tuple[int, int]]) -> Flow[list[bytes]]:
        """Read fields of hashes."""
        return (yield from self._read(session, shard, [(epoch, str(number)) for epoch, number in wanted]))

    def delete(self, session: Session, shard: int, state: ShardState, epoch: int) -> Flow[None]:
        """Delete the hash."""
        yield from ask(session, calls.store("delete", session.keys.shard(shard), state, epoch))

    def _write(self, session: Session, shard: int, state: ShardState, fields: Mapping[str, bytes]) -> Flow[None]:
        keys, epoch = session.keys.shard(shard), state.epoch - 1
        yield from ask(session, *(calls.store("write", keys, state, epoch, *field) for field in fields.items()))

    def _read(self, session: Session, shard: int, wanted: Sequence[tuple[int, str]]) -> Flow[list[bytes]]:
        keys = session.keys.shard(shard)
        found = yield from ask(session, *(("HGET", keys.archived(epoch), field) for epoch, field in wanted))
        return [each or b"" for each in found]


def _manifest(text: bytes) -> Manifest | None:
    try:
        return Manifest.from_json(text)
    except ArchiveCorrupt:
        return None
