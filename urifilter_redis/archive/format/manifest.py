"""What an archive says of what it keeps: manifests of bitmaps, checkpoints of shards, registrations of filters."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from urifilter_redis.archive.format import documents
from urifilter_redis.archive.format.packing import unpack
from urifilter_redis.bloom.digest import new_seed
from urifilter_redis.bloom.retention import size_first, slices_at
from urifilter_redis.errors import ArchiveCorrupt, UriFilterError
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.keys import check_name
from urifilter_redis.protocol.meta import ShardState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from urifilter_redis.bloom.sizing import Slice

__all__ = ["FORMAT", "PIECE", "Checkpoint", "Content", "Manifest", "Piece", "Registration", "is_blob_of", "piece_spans"]

#: The version of documents and packed pieces; what is newer is not read.
FORMAT = 1

#: Bytes of a bitmap that are read, packed, merged or written at once (BITOP takes a server 1.2 ms for as many).
PIECE = 256 << 10

#: Bytes of the records of a shard, and of what was forgotten: 11 million digests.
RECORDS_LIMIT = 256 << 20

_BLOB = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_ADDRESS = re.compile("[!-~]{1,2000}")
_UID = re.compile(r"[0-9a-f]{16}")

_NUMBER = "(?:0|[1-9][0-9]{0,14})"
_SLICE = f"[a-z0-9_]+:{_NUMBER}:{_NUMBER}"
_CLOSED = f"{_NUMBER}:{_NUMBER}:{_NUMBER}:{_NUMBER}"
_NEEDED = ("created", "epoch", "phase", "opened", "inserted", "oldest", "slices")
_NOTHING = re.compile("(?!)")

#: What each field of a state looks like.
_STATE = {
    **dict.fromkeys(
        ("created", "epoch", "opened", "inserted", "oldest", "pieces", "limit", "changed"), re.compile(_NUMBER)
    ),
    "phase": re.compile("idle|rotating"),
    "token": re.compile("[0-9a-f]{0,32}"),
    "late": re.compile("1"),
    "slices": re.compile(f"{_SLICE}(?: {_SLICE})*"),
    "closed": re.compile(f"(?:{_CLOSED}(?: {_CLOSED})*)?"),
}


def piece_spans(size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each piece of a bitmap of ``size`` bytes."""
    for offset in range(0, size, PIECE):
        yield offset, min(PIECE, size - offset)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a content, at most ``PIECE`` bytes.

    Attributes:
        length: bytes; packed: bytes as it is archived.
        sha256: of the piece, not packed, as hex.
    """

    length: int
    packed: int
    sha256: str

    @classmethod
    def of(cls, data: bytes, packed: bytes) -> Piece:
        """Describe a piece and what it was packed to."""
        return cls(len(data), len(packed), hashlib.sha256(data).hexdigest())

    def unpack(self, packed: bytes) -> bytes:
        """Return the piece.

        Raises:
            ArchiveCorrupt: it is not what was packed.
        """
        data = unpack(packed, self.length) if len(packed) == self.packed else b""
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ArchiveCorrupt("a piece is missing, or is not what its manifest says")
        return data


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that are archived in pieces, one packed piece after the other.

    Attributes:
        blob: where they are; empty: in Redis, beside the filter.
        pieces: in their order.
    """

    blob: str
    pieces: list[Piece]

    def spans(self) -> list[tuple[int, int]]:
        """Return (offset, length) of each packed piece in the blob."""
        spans, offset = [], 0
        for piece in self.pieces:
            spans.append((offset, piece.packed))
            offset += piece.packed
        return spans

    def check(self, uid: str, lengths: Sequence[int] | None, what: str) -> None:
        """Check it before it is used: whose it is, and that it takes no more memory than it may.

        Args:
            uid: of the filter.
            lengths: of the pieces, or None for any up to ``PIECE``.
            what: for errors.

        Raises:
            ArchiveCorrupt: with what is wrong.
        """
        found = [piece.length for piece in self.pieces]
        if self.blob and not is_blob_of(uid, self.blob):
            raise ArchiveCorrupt(f"{what} is in a blob of another filter")
        if lengths is not None and found != list(lengths):
            raise ArchiveCorrupt(f"{what} has pieces of other lengths")
        if any(not 0 < piece.length <= PIECE or not 0 < piece.packed <= piece.length + 1 for piece in self.pieces):
            raise ArchiveCorrupt(f"{what} has pieces of impossible lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an archived bitmap is.

    Attributes:
        format: version.
        filter: name; uid: of the filter; shard, shards: which of how many.
        epoch: in which the slice was today (rolling's history: of the shard).
        kind: ``slice`` (a closed one) or ``checkpoint``.
        name: of the live slice: ``today``, ``history_1`` …
        number: of the checkpoint; 0 for kind ``slice``.
        layout, k, units: geometry; size: bytes.
        hash, seed, normalize, retention: of the filter.
        opened, closed: server time, ms; closed is 0 for one that is not.
        inserted: items.
        compression: how pieces are packed.
        content: the bitmap.
    """

    format: int
    filter: str
    uid: str
    shard: int
    shards: int
    epoch: int
    kind: str
    name: str
    number: int
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
    content: Content

    @classmethod
    def of(  # noqa: PLR0913 - what is known of a bitmap
        cls, config: Config, name: str, shard: int, state: ShardState, slice_: Slice, *, kind: str, number: int = 0,
        content: Content,
    ) -> Manifest:  # fmt: skip
        """Describe a live slice of a shard."""
        closed = state.closed_of(slice_.name)
        same = {field.name for field in fields(cls)} & {field.name for field in fields(config)} - {"units"}
        return cls(
            **{field: getattr(config, field) for field in same},
            format=FORMAT,
            filter=name,
            shard=shard,
            epoch=state.epoch_of(slice_.name),
            kind=kind,
            name=slice_.name,
            number=number,
            units=slice_.units,
            size=slice_.size,
            opened=closed.opened if closed else state.opened,
            closed=closed.closed if closed else 0,
            inserted=closed.inserted if closed else state.inserted,
            compression="by piece",
            content=content,
        )

    def check(self, config: Config, shard: int, slice_: Slice, *, kind: str, epoch: int) -> None:
        """Check that it is of this filter, shard, kind, epoch and geometry.

        Raises:
            ArchiveCorrupt: with what differs.
        """
        same = ("uid", "shards", "layout", "k", "hash", "seed", "normalize", "retention")
        wanted = {field: getattr(config, field) for field in same}
        wanted |= {"units": slice_.units, "size": slice_.size, "shard": shard, "epoch": epoch, "kind": kind}
        differs = [field for field, value in wanted.items() if getattr(self, field) != value]
        what = f"the manifest of {kind} {self.name or epoch}, shard {shard}, epoch {epoch},"
        check_format(self.format, what)
        if differs:
            raise ArchiveCorrupt(f"{what} has other {', '.join(differs)}")
        if min(self.opened, self.closed, self.inserted, self.number) < 0:
            raise ArchiveCorrupt(f"{what} has numbers below 0")
        self.content.check(config.uid, [length for _, length in piece_spans(slice_.size)], what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A shard as it was while inserts went on: it holds at least all that was inserted before it began.

    Attributes:
        format: version.
        filter: name; uid: of the filter; shard, shards: which of how many.
        number: goes up with every checkpoint of the shard.
        begun: server time, ms.
        state: the fields of ``meta`` that change.
        bitmaps: the live slices, oldest first.
        replies: the records of ``replies``; forgotten: digests and their epochs; both read after the bitmaps.
    """

    format: int
    filter: str
    uid: str
    shard: int
    shards: int
    number: int
    begun: int
    state: dict[str, str]
    bitmaps: list[Manifest]
    replies: Content
    forgotten: Content

    @property
    def blobs(self) -> set[str]:
        """The blobs that it needs."""
        return {content.blob for content in self.contents}

    @property
    def contents(self) -> list[Content]:
        """All that it keeps."""
        return [*(bitmap.content for bitmap in self.bitmaps), self.replies, self.forgotten]

    def shard_state(self) -> ShardState:
        """Return what ``meta`` said.

        Raises:
            ArchiveCorrupt: it is not possible.
        """
        try:
            return ShardState.from_meta(self.state | {"uid": self.uid}, "checkpoint")
        except UriFilterError as error:
            raise ArchiveCorrupt(f"checkpoint {self.number}, shard {self.shard}: {error}") from error

    def check(self, config: Config, shard: int) -> None:
        """Check that it is of this filter and shard, and that its slices are such as the filter can have.

        Raises:
            ArchiveCorrupt: with what differs.
        """
        what = f"checkpoint {self.number}, shard {shard},"
        check_format(self.format, what)
        same = (self.uid, self.shard, self.shards) == (config.uid, shard, config.shards)
        if not same or not 1 <= self.number <= documents.MOST // 2 or self.begun < 1:
            raise ArchiveCorrupt(f"{what} is of another filter or shard")
        state = self._checked_state(config, what)
        if list(state.view.slices) != slices_at(config, config.today, state.epoch, rotating=state.phase == "rotating"):
            raise ArchiveCorrupt(f"{what} has slices that the filter cannot have")
        if [bitmap.name for bitmap in self.bitmaps] != [slice_.name for slice_ in state.view.slices]:
            raise ArchiveCorrupt(f"{what} lacks slices")
        for bitmap, slice_ in zip(self.bitmaps, state.view.slices, strict=True):
            bitmap.check(config, shard, slice_, kind="checkpoint", epoch=state.epoch_of(slice_.name))
        for content in (self.replies, self.forgotten):
            content.check(config.uid, None, what)
            if sum(piece.length for piece in content.pieces) > RECORDS_LIMIT:
                raise ArchiveCorrupt(f"{what} has more records than there can be")

    def _checked_state(self, config: Config, what: str) -> ShardState:
        """Return the state if every field of it is such as a script writes it."""
        wrong = [name for name, text in self.state.items() if not _STATE.get(name, _NOTHING).fullmatch(text)]
        if wrong or not set(_NEEDED) <= set(self.state):
            raise ArchiveCorrupt(f"{what} has a state that cannot be: {', '.join(wrong) or 'fields are missing'}")
        state = self.shard_state()
        rotating, growing = state.phase == "rotating", config.retention == "growing"
        possible = (
            len(state.closed) == state.epoch - state.oldest
            and all(each.epoch == epoch for epoch, each in enumerate(state.closed, state.oldest))
            and (not rotating or config.retention == "rolling")
            and (state.limit is not None) == growing
            and (state.pieces is None or (rotating and state.pieces <= len(list(piece_spans(config.bytes)))))
        )
        if not possible:
            raise ArchiveCorrupt(f"{what} has a state that cannot be")
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a filter is: all that is needed to make it anew on an empty server.

    Attributes:
        format: version.
        filter: name.
        created: seconds since 1970.
        config: with uid and seed.
        dropped: it is being removed, with all that is kept of it.
    """

    format: int
    filter: str
    created: float
    config: Config
    dropped: bool = False

    def check(self, name: str) -> None:
        """Check that it is of this name and possible.

        Raises:
            ArchiveCorrupt: it is not.
        """
        what = f"the registration of {name!r}"
        check_format(self.format, what)
        try:
            check_name(name)
        except ValueError as error:
            raise ArchiveCorrupt(f"{what}: {error}") from error
        if self.filter != name or not _UID.fullmatch(self.config.uid):
            raise ArchiveCorrupt(f"{what} is that of {self.filter!r}, uid {self.config.uid!r}")
        try:
            sizing = size_first(Settings(**self.config.settings))
            seed = new_seed(self.config.hash, self.config.seed)
        except ValueError as error:
            raise ArchiveCorrupt(f"{what}: {error}") from error
        if not _ADDRESS.fullmatch(self.config.archive or ""):
            raise ArchiveCorrupt(f"{what} names no archive")
        if seed != self.config.seed or not 0 <= self.created < documents.MOST:
            raise ArchiveCorrupt(f"{what} has a seed, or a time, that cannot be")
        if (sizing.k, sizing.units, sizing.slice_bytes) != (self.config.k, self.config.units, self.config.bytes):
            raise ArchiveCorrupt(f"{what} has another geometry than its settings")


def is_blob_of(uid: str, blob: str) -> bool:
    """Whether a blob's name is one that a filter's blobs have; names become paths."""
    return bool(_BLOB.fullmatch(blob)) and blob.startswith(uid)


def check_format(found: int, what: str) -> None:
    """Check a version.

    Raises:
        ArchiveCorrupt: it is newer.
    """
    if found > FORMAT:
        raise ArchiveCorrupt(f"{what} is of the newer format {found}: upgrade urifilter-redis")
