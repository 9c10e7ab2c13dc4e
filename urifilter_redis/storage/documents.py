"""The documents of an archive: manifests of bitmaps, checkpoints of shards, registrations of filters.

A document is JSON with its own SHA-256. ``load`` checks each value and its type. A note, a number, may stand beside the
document in the same text. The SHA-256 does not cover it. It says something about other documents: that all shards have
a checkpoint, or the number of the next checkpoint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.bloom.digest import new_seed
from urifilter_redis.bloom.retention import TIMED, size_first, slices_at
from urifilter_redis.bloom.sizing import Slice
from urifilter_redis.errors import ArchiveCorrupt, UriFilterError
from urifilter_redis.protocol.config import FORMAT, Config, Settings, other_format
from urifilter_redis.protocol.keys import check_name
from urifilter_redis.protocol.meta import ShardState
from urifilter_redis.storage.packing import unpack
from urifilter_redis.storage.records import KINDS, MOST

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Bytes of a bitmap that are read, packed, merged or written at once. A server's BITOP takes 1.2 ms for them.
PIECE = 256 << 10

_BLOB = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_ADDRESS = re.compile("[!-~]{1,2000}")
_UID = re.compile(r"[0-9a-f]{16}")

_NUMBER = "(?:0|[1-9][0-9]{0,14})"
_SLICE = f"[a-z0-9_]+:{_NUMBER}:{_NUMBER}:{_NUMBER}"
_CLOSED = f"{_NUMBER}:{_NUMBER}:{_NUMBER}:{_NUMBER}(?::{_NUMBER})?"

#: The fields that a manifest has of its filter's configuration.
_OF_FILTER = ("uid", "shards", "layout", "k", "hash", "seed", "normalize", "retention")

#: The fields of a shard's state that a checkpoint saves, and those of them that each state has.
STATE = (
    "created", "epoch", "phase", "token", "pieces", "late", "opened", "written", "inserted", "new", "limit", "closed",
    "oldest", "slices", "changed", "claims", "claimed", "rejected",
)  # fmt: skip
_NEEDED = {"created", "epoch", "phase", "opened", "inserted", "oldest", "slices"}

#: The pattern of each field of a shard's state.
_FORMS = dict.fromkeys(STATE, re.compile(_NUMBER)) | {
    "phase": re.compile("idle|rotating"),
    "token": re.compile("[0-9a-f]{0,32}"),
    "late": re.compile("1"),
    "slices": re.compile(f"{_SLICE}(?: {_SLICE})*"),
    "closed": re.compile(f"(?:{_CLOSED}(?: {_CLOSED})*)?"),
}

D = TypeVar("D", bound="DataclassInstance")

_hints = cache(typing.get_type_hints)


def dump(document: DataclassInstance, note: int = 0) -> bytes:
    """Return a document as JSON text with its SHA-256; with the note, unless that is 0."""
    values = dataclasses.asdict(document)
    beside = {"note": note} if note else {}
    return json.dumps({"sha256": _sha256(values), "document": values} | beside).encode()


def note_of(text: bytes | None) -> int:
    """Return the note in the text of a document; 0 if it has none."""
    try:
        note = json.loads(text or b"{}")["note"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    return note if type(note) is int and 0 < note <= MOST else 0


def is_whole(text: bytes) -> bool:
    """Whether the text of a document is as it was written, whatever the document says."""
    try:
        found = json.loads(text)
        return bool(found["sha256"] == _sha256(found["document"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def load(kind: type[D], text: bytes, what: str) -> D:
    """Read a document.

    Args:
        kind: the dataclass of the document.
        text: the JSON text that ``dump`` returned.
        what: the name of the document in errors.

    Raises:
        ArchiveCorrupt: the text is damaged, or holds another kind of document, or one of another format.
    """
    try:
        found = json.loads(text, parse_constant=_refuse)
        values = found["document"]
        if found["sha256"] != _sha256(values):
            raise ArchiveCorrupt(f"{what} is damaged: its SHA-256 does not match")
        return _build(kind, values, what)  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ArchiveCorrupt(f"{what} cannot be read: {error!r}"[:300]) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _sha256(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _build(kind: Any, value: Any, what: str) -> Any:
    """Convert a JSON value to a type: a dataclass, a list, a dictionary with string keys, or a plain type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        if type(value) is not dict:
            raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
        if "format" in hints and type(found := value.get("format")) is int and found != FORMAT:
            raise ArchiveCorrupt(f"{what} is {other_format(found)}")  # before its fields, which may be others
        if set(value) - set(hints):
            raise TypeError(f"{kind.__name__} has no {', '.join(sorted(set(value) - set(hints)))}")
        return kind(**{name: _build(hints[name], each, what) for name, each in value.items()})
    if origin is list and type(value) is list:
        return [_build(arguments[0], each, what) for each in value]
    if origin is dict and type(value) is dict:
        return {_build(arguments[0], name, what): _build(arguments[1], each, what) for name, each in value.items()}
    if origin is types.UnionType:
        return None if value is None else _build(arguments[0], value, what)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (kind is int and abs(value) > MOST):
        raise TypeError(f"{str(value)[:40]!r} is no {getattr(kind, '__name__', kind)}")
    return value


def piece_spans(size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each piece of a bitmap of ``size`` bytes."""
    for offset in range(0, size, PIECE):
        yield offset, min(PIECE, size - offset)


def row_spans(slice_: Slice) -> list[tuple[int, int, int]]:
    """Return (segment, offset, length) of each piece of a slice, segment by segment."""
    return [(segment, *span) for segment in range(slice_.segments) for span in piece_spans(slice_.size)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a content, at most ``PIECE`` bytes.

    Attributes:
        length: bytes of the piece.
        packed: bytes of the packed piece in the archive.
        sha256: the SHA-256 of the unpacked piece, as hex.
    """

    length: int
    packed: int
    sha256: str

    @classmethod
    def of(cls, data: bytes, packed: bytes) -> Piece:
        """Describe a piece, given unpacked and packed."""
        return cls(len(data), len(packed), hashlib.sha256(data).hexdigest())

    def unpack(self, packed: bytes) -> bytes:
        """Unpack a piece and check its SHA-256.

        Raises:
            ArchiveCorrupt: the packed piece is damaged or missing.
        """
        data = unpack(packed, self.length) if len(packed) == self.packed else b""
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ArchiveCorrupt("a piece is missing, or is not what its manifest says")
        return data


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that are archived in pieces, one packed piece after the other.

    Attributes:
        blob: the name of the blob; empty: the pieces are in Redis, beside the filter.
        pieces: the pieces, in their order.
    """

    blob: str
    pieces: list[Piece]

    @property
    def size(self) -> int:
        """The bytes of all pieces, unpacked."""
        return sum(piece.length for piece in self.pieces)

    @property
    def packed(self) -> int:
        """The bytes of all pieces in the archive: of the whole blob."""
        return sum(piece.packed for piece in self.pieces)

    def spans(self) -> list[tuple[int, int]]:
        """Return (offset, length) of each packed piece in the blob."""
        spans, offset = [], 0
        for piece in self.pieces:
            spans.append((offset, piece.packed))
            offset += piece.packed
        return spans

    def check(self, uid: str, lengths: Sequence[int] | None, what: str) -> None:
        """Check the blob's filter and the lengths of the pieces, before memory is used for them.

        Args:
            uid: the filter's uid.
            lengths: the length of each piece, bytes; None: any lengths up to ``PIECE``.
            what: the name of the content in errors.

        Raises:
            ArchiveCorrupt: the blob belongs to another filter, or a length is wrong.
        """
        found = [piece.length for piece in self.pieces]
        if self.blob and not is_blob_of(uid, self.blob):
            raise ArchiveCorrupt(f"{what} is in a blob of another filter")
        if lengths is not None and found != list(lengths):
            raise ArchiveCorrupt(f"{what} has pieces of other lengths")
        if any(not 0 < piece.length <= PIECE or not 0 < piece.packed <= piece.length + 1 for piece in self.pieces):
            raise ArchiveCorrupt(f"{what} has pieces of impossible lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfShard:
    """What a document about a shard begins with.

    Attributes:
        format: always ``FORMAT``.
        filter: the filter's name.
        uid: the filter's uid.
        shard: the shard's number, from 0.
        shards: the number of shards.
    """

    format: int
    filter: str
    uid: str
    shard: int
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(_OfShard):
    """The description of an archived bitmap. ``layout``, ``k``, ``hash`` … ``retention`` are the filter's settings.

    Attributes:
        epoch: the epoch in which the slice was today; of rolling's history: the shard's epoch.
        kind: ``slice`` (a closed slice: the pieces of all bitmaps of its row) or ``checkpoint`` (one bitmap).
        name: the name of the live slice: ``today``, ``history_1`` …
        segment: the number of the bitmap in its shard's row, from 0.
        number: the checkpoint's number; 0 for kind ``slice``.
        units: the size of the bitmap in units of its layout.
        size: the size of the bitmap in bytes.
        opened: when the slice became today, server time in ms.
        closed: when the slice was closed, server time in ms; 0 if it is today.
        inserted: the number of items that were inserted into the slice.
        compression: how the pieces are packed; always ``by piece``.
        content: the pieces of the bitmap.
    """

    epoch: int
    kind: str
    name: str
    segment: int
    number: int
    layout: str
    k: int
    units: int
    size: int
    hash: str
    seed: str = field(repr=False)
    normalize: str
    retention: str
    opened: int
    closed: int
    inserted: int
    compression: str
    content: Content

    @classmethod
    def of(  # noqa: PLR0913 - each argument is a fact about the bitmap
        cls, config: Config, name: str, shard: int, state: ShardState, slice_: Slice, *, kind: str, segment: int = 0,
        number: int = 0, content: Content,
    ) -> Manifest:  # fmt: skip
        """Describe a bitmap of a live slice of a shard."""
        times = state.times_of(slice_.name)
        return cls(
            **{field: getattr(config, field) for field in _OF_FILTER},
            format=FORMAT,
            filter=name,
            shard=shard,
            epoch=state.epoch_of(slice_.name),
            kind=kind,
            name=slice_.name,
            segment=segment,
            number=number,
            units=slice_.units,
            size=slice_.size,
            opened=times.opened,
            closed=times.closed,
            inserted=times.inserted,
            compression="by piece",
            content=content,
        )

    def check(  # noqa: PLR0913 - each is a fact that must agree
        self, config: Config, shard: int, slice_: Slice, *, kind: str, epoch: int, segment: int = 0
    ) -> None:
        """Check that the manifest is of this filter, shard, kind, epoch, segment and geometry.

        Raises:
            ArchiveCorrupt: a field differs; the error names it.
        """
        wanted = {field: getattr(config, field) for field in _OF_FILTER}
        wanted |= {"units": slice_.units, "size": slice_.size, "shard": shard, "epoch": epoch, "kind": kind}
        wanted["segment"] = segment
        differs = [field for field, value in wanted.items() if getattr(self, field) != value]
        row = f", segment {segment}" if segment else ""
        what = f"the manifest of {kind} {self.name or epoch}, shard {shard}{row}, epoch {epoch},"
        if differs:
            raise ArchiveCorrupt(f"{what} has other {', '.join(differs)}")
        if min(self.opened, self.closed, self.inserted, self.number) < 0:
            raise ArchiveCorrupt(f"{what} has numbers below 0")
        bitmaps = slice_.segments if kind == "slice" else 1
        self.content.check(config.uid, bitmaps * [length for _, length in piece_spans(slice_.size)], what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(_OfShard):
    """A copy of a shard, made while inserts went on. It has all items that were inserted before it began.

    Attributes:
        number: the checkpoint's number; it goes up with every checkpoint of the shard.
        begun: when the checkpoint began, server time in ms.
        state: the fields of the shard's meta that change.
        bitmaps: the manifests of the bitmaps of the live slices, oldest slice first.
        records: the records of each of ``KINDS``. They were read after the bitmaps: forgotten digests before and after
            the records of calls, then dead letters before and after the leases.
        previous: the number of the checkpoint that the shard's other document had then; 0: it had none.
        config: the filter's configuration, from which a damaged registration is made again; None: it is not known.
    """

    number: int
    begun: int
    state: dict[str, str]
    bitmaps: list[Manifest]
    records: dict[str, Content]
    previous: int = 0
    config: Config | None = field(default=None, repr=False)

    @property
    def rows(self) -> list[range]:
        """The places in ``bitmaps`` of the segments of each live slice, oldest slice first."""
        ends = accumulate((each.segments for each in self.shard_state().view.slices), initial=0)
        return [range(start, end) for start, end in pairwise(ends)]

    @property
    def blobs(self) -> set[str]:
        """The names of all blobs that the checkpoint needs."""
        return {content.blob for content in self.contents}

    @property
    def contents(self) -> list[Content]:
        """All contents: the bitmaps, then the records."""
        return [*(bitmap.content for bitmap in self.bitmaps), *self.records.values()]

    def shard_state(self) -> ShardState:
        """Return the shard's state, parsed.

        Raises:
            ArchiveCorrupt: the state is impossible.
        """
        try:
            return ShardState.from_meta(self.state | {"uid": self.uid}, "checkpoint")
        except UriFilterError as error:
            raise ArchiveCorrupt(f"checkpoint {self.number}, shard {self.shard}: {error}") from error

    def check(self, config: Config, shard: int) -> None:
        """Check that the checkpoint is of this filter and shard, and that the filter can have its slices.

        Raises:
            ArchiveCorrupt: a field differs or is impossible; the error names it.
        """
        what = f"checkpoint {self.number}, shard {shard},"
        own = config if self.config is None else self.config
        same = (self.uid, own.uid, self.shard, self.shards) == (config.uid, config.uid, shard, config.shards)
        if not same or not 1 <= self.number <= MOST // 2 or self.begun < 1:
            raise ArchiveCorrupt(f"{what} is of another filter or shard")
        if list(self.records) != list(KINDS):
            raise ArchiveCorrupt(f"{what} has the records {', '.join(self.records)}, and not {', '.join(KINDS)}")
        state = self._checked_state(config, what)
        if list(state.view.slices) != _slices(config, state):
            raise ArchiveCorrupt(f"{what} has slices that the filter cannot have")
        wanted = [(slice_, segment) for slice_ in state.view.slices for segment in range(slice_.segments)]
        if [(bitmap.name, bitmap.segment) for bitmap in self.bitmaps] != [(each.name, n) for each, n in wanted]:
            raise ArchiveCorrupt(f"{what} lacks bitmaps")
        for bitmap, (slice_, segment) in zip(self.bitmaps, wanted, strict=True):
            epoch = state.epoch_of(slice_.name)
            bitmap.check(config, shard, slice_, kind="checkpoint", epoch=epoch, segment=segment)
        for kind, content in self.records.items():
            content.check(config.uid, None, what)
            if content.size > KINDS[kind].limit:
                raise ArchiveCorrupt(f"{what} has more records than there can be")

    def _checked_state(self, config: Config, what: str) -> ShardState:
        """Return the state; raise ArchiveCorrupt unless the scripts can have written each field."""
        wrong = [name for name, text in self.state.items() if name not in _FORMS or not _FORMS[name].fullmatch(text)]
        if wrong or not set(self.state) >= _NEEDED:
            raise ArchiveCorrupt(f"{what} has a state that cannot be: {', '.join(wrong) or 'fields are missing'}")
        state = self.shard_state()
        rotating, growing = state.phase == "rotating", config.retention == "growing"
        possible = (
            (state.view.claims > 0) == (state.claimed > 0)
            and (state.view.claims > 0 or not (self.records["leases"].size or self.records["dead_letters"].size))
            and _are_epochs([each.epoch for each in state.closed], state, every=config.retention not in TIMED)
            and (not rotating or config.retention == "rolling")
            and (state.limit is not None) == growing
            and (state.pieces is None or (rotating and state.pieces <= len(row_spans(config.today))))
        )
        if not possible:
            raise ArchiveCorrupt(f"{what} has a state that cannot be")
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A filter's registration: its whole configuration, so that it can be created again on an empty server.

    Attributes:
        format: always ``FORMAT``.
        filter: the filter's name.
        created: when the filter was registered, seconds since 1970.
        config: the filter's configuration, with uid and seed.
        dropped: whether the filter is being removed from the archive.
    """

    format: int
    filter: str
    created: float
    config: Config
    dropped: bool = False

    def check(self, name: str) -> None:
        """Check that the registration is of this name and that its configuration is possible.

        Raises:
            ArchiveCorrupt: the name differs, or a value is impossible.
        """
        what = f"the registration of {name!r}"
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
        if seed != self.config.seed or not 0 <= self.created < MOST:
            raise ArchiveCorrupt(f"{what} has a seed, or a time, that cannot be")
        if (sizing.k, sizing.slice()) != (self.config.k, self.config.today):
            raise ArchiveCorrupt(f"{what} has another geometry than its settings")


def _are_epochs(closed: list[int], state: ShardState, *, every: bool) -> bool:
    """Whether these can be the epochs of the closed slices; ``every``: none was passed over."""
    if not all(state.oldest <= each < state.epoch for each in closed) or state.oldest > state.epoch:
        return False
    return closed == sorted(set(closed)) and (not every or len(closed) == state.epoch - state.oldest)


def _slices(config: Config, state: ShardState) -> list[Slice]:
    """Return the live slices that a shard has in this state, if it can be."""
    turns, rotating = state.epoch, state.phase == "rotating"
    if config.retention in TIMED:  # epochs that were passed over have no slice
        turns = len(state.closed)
    if rotating and state.closed and state.closed[-1].epoch <= state.epoch - (config.slices or 0):
        turns = 0  # nor has anything else
    return slices_at(config, config.today, turns, rotating=rotating)


def is_blob_of(uid: str, blob: str) -> bool:
    """Whether a name is that of a blob of this filter. Only such a name is safe in a path."""
    return bool(_BLOB.fullmatch(blob)) and blob.startswith(uid)
