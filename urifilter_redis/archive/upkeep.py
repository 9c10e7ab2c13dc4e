"""Looking after an archive without Redis: what is in it, is it sound, and what nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.archive import documents
from urifilter_redis.archive.contents import verify
from urifilter_redis.archive.manifest import Checkpoint, Manifest, Registration
from urifilter_redis.archive.register import read_registration, unregister
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing
from urifilter_redis.state import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from urifilter_redis.archive.home import Blob, Home, Key
    from urifilter_redis.archive.manifest import Content
    from urifilter_redis.config import Config
    from urifilter_redis.steps import Flow

__all__ = ["Document", "Entry", "Pruned", "Verified", "entries", "names", "prune", "show", "verify_all"]


@dataclass(frozen=True, slots=True)
class Document:
    """A slice or checkpoint in an archive; the attributes are the keys of its JSON.

    Attributes:
        kind: ``slice`` or ``checkpoint``.
        shard: which; epoch: of the slice, or of the shard at the checkpoint.
        number: of the checkpoint; 0 for a slice.
        time: when the checkpoint began or the slice was closed, seconds since 1970.
        inserted: items answered "new" that it holds.
        size: bytes of the bitmaps and records; packed: as they are archived.
        problem: why it cannot be used; None if nothing is known against it.
    """

    kind: str
    shard: int
    epoch: int
    number: int = 0
    time: float = 0.0
    inserted: int = 0
    size: int = 0
    packed: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A filter in an archive; the attributes are the keys of its JSON.

    Attributes:
        filter: name.
        uid: of the filter; layout, retention, capacity, shards: as in its ``info``.
        created: when it was registered, seconds since 1970.
        checkpointed: shards that have a checkpoint.
        begun: when the oldest of the shards' last checkpoints began; None if a shard has none.
        slices: closed slices, over all shards.
        packed: bytes of what the documents need; leftovers not counted.
        problems: what is known to be wrong, contents not looked at.
    """

    filter: str
    uid: str
    layout: str
    retention: str
    capacity: int
    shards: int
    created: float
    checkpointed: int
    begun: float | None
    slices: int
    packed: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a look at everything found.

    Attributes:
        documents: how many were read, with all that they need.
        packed: bytes that were read.
        problems: what is wrong, one text each.
    """

    documents: int
    packed: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed.

    Attributes:
        blobs: leftovers of uploads; packed: their bytes.
        documents: closed slices that have expired; filters whose removal somebody has left.
        problems: damaged documents, because of which leftovers of their filter were kept.
    """

    blobs: int
    packed: int
    documents: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    key: Key
    text: bytes
    found: Checkpoint | Manifest | None
    problem: str = ""

    def contents(self) -> list[Content]:
        if self.found is None:
            return []
        return self.found.contents if isinstance(self.found, Checkpoint) else [self.found.content]


def names(home: Home) -> Flow[list[str]]:
    """Return the names of the filters that are registered, sorted."""
    return [key.filter for key in (yield from home.keys()) if key.kind == "filter"]


def entries(home: Home) -> Flow[list[Entry]]:
    """Return what is in an archive; a filter whose registration is damaged is there with the problem alone."""
    found = []
    for name in (yield from names(home)):
        try:
            registration = yield from _registration(home, name)
        except ArchiveCorrupt as error:
            found.append(Entry(name, "", "", "", 0, 0, 0.0, 0, None, 0, 0, (str(error),)))
            continue
        found.append((yield from _entry(home, registration)))
    return found


def _entry(home: Home, registration: Registration) -> Flow[Entry]:
    config, read = registration.config, (yield from _documents(home, registration.filter, registration.config))
    last: dict[int, Checkpoint] = {}
    for each in read:
        if isinstance(each.found, Checkpoint) and each.found.number > getattr(last.get(each.key.shard), "number", 0):
            last[each.key.shard] = each.found
    begun = min(each.begun for each in last.values()) / 1000 if len(last) == config.shards else None
    blobs = {content.blob: _packed([content]) for each in read for content in each.contents()}
    return Entry(
        filter=registration.filter,
        **{name: getattr(config, name) for name in ("uid", "layout", "retention", "capacity", "shards")},
        created=registration.created,
        checkpointed=len(last),
        begun=begun,
        slices=sum(each.key.kind == "slice" for each in read),
        packed=sum(blobs.values()),
        problems=tuple(each.problem for each in read if each.problem),
    )


def show(home: Home, name: str) -> Flow[tuple[Registration, list[Document]]]:
    """Return the registration of a filter, and its checkpoints and slices.

    Raises:
        ArchiveMissing: it is not in the archive.
        ArchiveCorrupt: its registration is damaged.
    """
    registration = yield from _registration(home, name)
    read = yield from _documents(home, name, registration.config)
    return registration, [_document(each) for each in read]


def verify_all(home: Home, only: str | None, report: Callable[[int, int], object]) -> Flow[Verified]:
    """Read everything of one filter, or of all, and compare it with what it must be; ``report``: (done, total)."""
    checked = packed = 0
    problems: list[str] = []
    for name in [only] if only else (yield from names(home)):
        try:
            registration = yield from _registration(home, name)
        except ArchiveCorrupt as error:
            problems.append(str(error))
            continue
        read = yield from _documents(home, name, registration.config)
        for done, each in enumerate(read, 1):
            if not each.problem:
                each = yield from _verified(home, each)  # noqa: PLW2901 - the same, looked at
            checked, packed = checked + 1, packed + _packed(each.contents())
            problems += [each.problem] if each.problem else []
            report(done, len(read))
    return Verified(checked, packed, tuple(problems))


def prune(home: Home, age: float, only: str | None = None) -> Flow[Pruned]:
    """Remove leftovers: blobs that no document names and that are older than ``age`` seconds, and expired slices.

    What is younger may be somebody's upload under way: uploads give up after half an hour.
    """
    blobs = yield from home.blobs(only)  # before the documents: what is written meanwhile is not among them
    removed: list[Blob] = []
    expired = 0
    problems: list[str] = []
    found = yield from home.keys(only)
    for name in sorted({key.filter for key in found} | {blob.filter for blob in blobs}):
        mine = [blob for blob in blobs if blob.filter == name and blob.age >= age]
        text, registration = yield from read_registration(home, name)
        if text is not None and registration is not None and registration.dropped:
            expired += yield from unregister(home, name)
            continue
        config = registration.config if registration else None
        expired += yield from _expire(home, name, config)
        needed: set[str] = set()
        for _ in range(2):  # twice, because a checkpoint may have moved between two documents that were read
            read = yield from _documents(home, name, config)
            needed |= {content.blob for each in read for content in each.contents()}
        damaged = {each.key.uid for each in read if each.found is None}
        problems += [f"{each.problem}: leftovers of {name!r} were kept" for each in read if each.found is None]
        doomed = [blob for blob in mine if blob.id not in needed and blob.id.split("-")[0] not in damaged]
        yield from home.delete(name, [blob.id for blob in doomed])
        removed += doomed
    return Pruned(len(removed), sum(blob.size for blob in removed), expired, tuple(problems))


def _expire(home: Home, name: str, config: Config | None) -> Flow[int]:
    """Remove closed slices that no checkpoint counts among the window's any more."""
    read = yield from _documents(home, name, config)
    oldest: dict[tuple[str, int], int] = {}
    for each in read:
        if isinstance(each.found, Checkpoint) and not each.problem:
            at = (each.key.uid, each.key.shard)
            epoch = each.found.shard_state().oldest
            oldest[at] = min(epoch, oldest.get(at, epoch))
    removed = 0
    for each in read:
        if each.key.kind == "slice" and each.key.epoch < oldest.get((each.key.uid, each.key.shard), 0):
            removed += yield from home.swap(each.key, each.text, None)
    return removed


def _registration(home: Home, name: str) -> Flow[Registration]:
    _, found = yield from read_registration(home, name)
    if found is None:
        raise ArchiveMissing(f"archive {home.shown}: there is no filter {name!r}")
    return found


def _documents(home: Home, name: str, config: Config | None) -> Flow[list[_Read]]:
    """Read the slices and checkpoints of a filter; with ``config`` check that they are its own."""
    read = []
    for key in (yield from home.keys(name)):
        if key.kind != "filter":
            text = yield from home.read(key)
            if text is not None:  # removed meanwhile
                read.append(_load(key, text, config))
    return read


def _load(key: Key, text: bytes, config: Config | None) -> _Read:
    what = f"{key.kind} of {key.filter!r}, shard {key.shard}, epoch {key.epoch}"
    try:
        found: Checkpoint | Manifest
        if key.kind == "checkpoint":
            found = documents.load(Checkpoint, text, what)
        else:
            found = documents.load(Manifest, text, what)
    except ArchiveCorrupt as error:
        return _Read(key, text, None, str(error))
    if config is None or key.uid != config.uid:
        return _Read(key, text, found, f"{what}: no filter of this uid is registered")
    try:
        if isinstance(found, Checkpoint):
            found.check(config, key.shard)
        else:
            closed = Slice("history_1", config.units, config.bytes)
            found.check(config, key.shard, closed, kind="slice", epoch=key.epoch)
    except ArchiveCorrupt as error:
        return _Read(key, text, found, str(error))
    return _Read(key, text, found)


def _verified(home: Home, each: _Read) -> Flow[_Read]:
    try:
        for content in each.contents():
            yield from verify(home, each.key.filter, content)
    except (ArchiveCorrupt, ArchiveMissing) as error:
        what = f"{each.key.kind} of {each.key.filter!r}, shard {each.key.shard}, epoch {each.key.epoch}"
        return _Read(each.key, each.text, each.found, f"{what}: {error}")
    return each


def _document(each: _Read) -> Document:
    key, found, problem = each.key, each.found, each.problem or None
    if found is None:
        return Document(key.kind, key.shard, key.epoch, problem=problem)
    contents = each.contents()
    size, packed = sum(piece.length for content in contents for piece in content.pieces), _packed(contents)
    if isinstance(found, Manifest):
        return Document("slice", key.shard, key.epoch, 0, found.closed / 1000, found.inserted, size, packed, problem)
    try:
        state = found.shard_state()
        epoch, inserted = state.epoch, state.inserted_in_all
    except ArchiveCorrupt:
        epoch = inserted = 0
    begun = found.begun / 1000
    return Document("checkpoint", key.shard, epoch, found.number, begun, inserted, size, packed, problem)


def _packed(contents: Iterable[Content]) -> int:
    return sum(piece.packed for content in contents for piece in content.pieces)
