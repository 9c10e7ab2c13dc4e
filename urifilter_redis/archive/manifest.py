"""What goes with an archived bitmap, and how its pieces are packed and checked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import zstandard

from urifilter_redis.errors import ArchiveCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urifilter_redis.config import Config
    from urifilter_redis.state import ShardState

__all__ = ["FORMAT", "PIECE", "Manifest", "pack", "piece_spans", "unpack"]

#: The version of manifests and packed pieces; what is newer is not read.
FORMAT = 1

#: Bytes of a bitmap that are read, packed, merged or written at once (BITOP takes a server 1.2 ms for as many).
PIECE = 256 << 10

#: zstd's level: higher ones gain little on bitmaps.
LEVEL = 3

_PLAIN, _ZSTD = b"\0", b"\1"


def piece_spans(size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each piece of a bitmap of ``size`` bytes."""
    for offset in range(0, size, PIECE):
        yield offset, min(PIECE, size - offset)


def pack(piece: bytes) -> bytes:
    """Compress a piece if that makes it smaller; the first byte says whether it did."""
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(piece)
    return _ZSTD + packed if len(packed) < len(piece) else _PLAIN + piece


def unpack(packed: bytes, length: int, sha256: str) -> bytes:
    """Return a piece of ``length`` bytes; never more is decompressed.

    Raises:
        ArchiveCorrupt: it is not what was packed.
    """
    kind, data = packed[:1], packed[1:]
    try:
        if kind == _ZSTD and zstandard.get_frame_parameters(data).content_size == length:
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=length)
    except zstandard.ZstdError as error:
        raise ArchiveCorrupt(f"a piece cannot be decompressed: {error}") from error
    if kind not in {_PLAIN, _ZSTD} or len(data) != length or hashlib.sha256(data).hexdigest() != sha256:
        raise ArchiveCorrupt("a piece is not what its manifest says")
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an archived bitmap is.

    Attributes:
        format: version of the manifest and the packed pieces.
        filter: name; uid: of the filter; shard, shards: which of how many.
        epoch: in which the slice was today.
        kind: ``slice``.
        layout, k, units: geometry; size: bytes.
        hash, seed, normalize, retention: of the filter.
        opened, closed: server time, ms.
        inserted: items.
        compression: of the pieces.
        pieces: SHA-256 of each piece, unpacked, as hex.
    """

    format: int
    filter: str
    uid: str
    shard: int
    shards: int
    epoch: int
    kind: str
    layout: str
    k: int
    units: int
    size: int
    hash: str
    seed: str
    normalize: str
    retention: str
    opened: int
    closed: int
    inserted: int
    compression: str
    pieces: list[str]

    @classmethod
    def of_closed(cls, config: Config, name: str, shard: int, state: ShardState, pieces: list[str]) -> Manifest:
        """Describe the slice that the last rotation of a shard has closed."""
        closed = state.closed[-1]
        same = {field.name for field in fields(cls)} & {field.name for field in fields(config)}
        return cls(
            **{field: getattr(config, field) for field in same},
            format=FORMAT,
            filter=name,
            shard=shard,
            size=config.bytes,
            epoch=closed.epoch,
            kind="slice",
            opened=closed.opened,
            closed=closed.closed,
            inserted=closed.inserted,
            compression="zstd",
            pieces=pieces,
        )

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Read it.

        Raises:
            ArchiveCorrupt: it is no manifest, or of a newer version.
        """
        try:
            values = json.loads(text)
            if values["format"] > FORMAT:
                raise ArchiveCorrupt(f"a manifest of the newer format {values['format']}: upgrade urifilter-redis")
            manifest = cls(**values)
            wrong = [name for name, type_ in _TYPES.items() if type(getattr(manifest, name)) is not type_]
            if wrong or not all(type(each) is str for each in manifest.pieces):
                raise ArchiveCorrupt(f"a manifest has {', '.join(wrong) or 'pieces'} of the wrong type")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ArchiveCorrupt(f"a manifest cannot be read: {error!r}") from error
        return manifest

    def to_json(self) -> bytes:
        """Write it."""
        return json.dumps(asdict(self)).encode()

    def check(self, config: Config, shard: int, epoch: int) -> None:
        """Check that it is of this filter, shard and epoch.

        Raises:
            ArchiveCorrupt: with what differs.
        """
        same = ("uid", "shards", "layout", "k", "units", "hash", "seed")
        wanted = {field: getattr(config, field) for field in same}
        wanted |= {"size": config.bytes, "shard": shard, "epoch": epoch, "kind": "slice"}
        differs = [field for field, value in wanted.items() if getattr(self, field) != value]
        if len(self.pieces) != len(list(piece_spans(config.bytes))):
            differs.append("pieces")
        if differs:
            raise ArchiveCorrupt(f"the manifest of slice {epoch}, shard {shard}, has other {', '.join(differs)}")


_TYPES = {field.name: {"int": int, "str": str}.get(str(field.type), list) for field in fields(Manifest)}
