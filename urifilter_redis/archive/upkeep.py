"""Looking after an archive without Redis: what is in it, is it sound, and what nobody needs any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from urifilter_redis.archive.format.manifest import Checkpoint, Manifest
from urifilter_redis.archive.listing import list_documents, missing
from urifilter_redis.archive.register import is_complete, read_registration, unregister
from urifilter_redis.archive.verifying import verified
from urifilter_redis.engine.home import Key
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from urifilter_redis.archive.format.manifest import Content, Registration
    from urifilter_redis.archive.listing import Listed
    from urifilter_redis.engine.home import Blob, Home
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

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
        filters: of how many there was anything.
        documents: how many were read, with all that they need.
        packed: bytes that were read.
        problems: what is wrong, one text each.
    """

    filters: int
    documents: int
    packed: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed.

    Attributes:
        blobs: leftovers of uploads; packed: their bytes.
        documents: closed slices that have expired; filters whose removal somebody has left.
        problems: damaged documents and registrations, because of which leftovers of their filter were kept.
    """

    blobs: int
    packed: int
    documents: int
    problems: tuple[str, ...]


def names(home: Home) -> Flow[list[str]]:
    """Return the names of the filters that are registered, sorted."""
    found = []
    for name in (yield from home.filters()):
        try:
            if (yield from home.read(Key(name))) is not None:
                found.append(name)
        except ArchiveCorrupt:  # who needs it will be told
            found.append(name)
    return found


def entries(home: Home) -> Flow[list[Entry]]:
    """Return what is in an archive; a filter that cannot be read is there with the problem alone."""
    found = []
    for name in (yield from home.filters()):
        try:
            text, registration = yield from read_registration(home, name)
            listed = yield from list_documents(home, name, registration.config if registration else None)
        except ArchiveCorrupt as error:
            found.append(Entry(name, "", "", "", 0, 0, 0.0, 0, None, 0, 0, (str(error),)))
            continue
        if registration is not None:
            found.append(_entry(registration, listed, _missing(registration, listed, text)))
        elif listed:
            problem = _unregistered(home, name)
            found.append(Entry(name, "", "", "", 0, 0, 0.0, 0, None, 0, 0, (problem,)))
    return found


def _unregistered(home: Home, name: str) -> str:
    return f"archive {home.shown}: the registration of {name!r} is missing, and there are documents of it"


def _missing(registration: Registration, listed: list[Listed], text: bytes | None) -> list[str]:
    """Say what is missing, by all that is known; of a filter that is being dropped nothing is."""
    if registration.dropped:
        return []
    return missing(registration.config, registration.filter, listed, complete=is_complete(text))


def _entry(registration: Registration, read: list[Listed], lost: list[str]) -> Entry:
    config = registration.config
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
        problems=(*(each.problem for each in read if each.problem), *lost),
    )


def show(home: Home, name: str) -> Flow[tuple[Registration, list[Document]]]:
    """Return the registration of a filter, and its checkpoints and slices.

    Raises:
        ArchiveMissing: it is not in the archive.
        ArchiveCorrupt: its registration is damaged.
    """
    _, registration = yield from read_registration(home, name)
    if registration is None:
        raise _not_there(home, name)
    read = yield from list_documents(home, name, registration.config)
    return registration, [_document(each) for each in read]


def _not_there(home: Home, name: str) -> ArchiveMissing:
    return ArchiveMissing(f"archive {home.shown}: there is no filter {name!r}")


def verify_all(home: Home, only: str | None, report: Callable[[int, int], object]) -> Flow[Verified]:
    """Read everything of one filter, or of all, and compare it with what it must be; ``report``: (done, total).

    Raises:
        ArchiveMissing: there is nothing of that one filter, or no archive.
        ArchiveError: the archive failed before anything was read.
    """
    found = [only] if only else (yield from home.filters())
    looked = _Look(home, report)
    for name in found:
        try:
            there = yield from looked.at(name)
        except ArchiveError as error:  # of this filter nothing more can be read
            looked.problems.append(str(error))
            continue
        if only and not there:
            raise _not_there(home, name)
    return Verified(len(found), looked.documents, looked.packed, tuple(looked.problems))


class _Look:
    """A look at filters, which notes what is wrong and goes on."""

    def __init__(self, home: Home, report: Callable[[int, int], object]) -> None:
        self._home, self._report = home, report
        self.documents = self.packed = 0
        self.problems: list[str] = []

    def at(self, name: str) -> Flow[bool]:
        """Read all of a filter; return whether there was anything."""
        text, registration, damaged = None, None, False
        try:
            text, registration = yield from read_registration(self._home, name)
        except ArchiveCorrupt as error:
            self.problems.append(str(error))
            damaged = True
        config = registration.config if registration else None
        listed = yield from list_documents(self._home, name, config)
        if registration is None and listed and not damaged:
            self.problems.append(_unregistered(self._home, name))
        for done, each in enumerate(listed, 1):
            if found := (yield from verified(self._home, each, config)):
                self.documents, self.packed = self.documents + 1, self.packed + _packed(found.contents())
                self.problems += [found.problem] if found.problem else []
            self._report(done, len(listed))
        if registration and (lost := _missing(registration, listed, text)):
            again = yield from list_documents(self._home, name, config)  # some may have moved while they were listed
            still = set(_missing(registration, again, text))
            self.problems += [problem for problem in lost if problem in still]
        return damaged or bool(listed) or registration is not None


def prune(home: Home, age: float, only: str | None = None) -> Flow[Pruned]:
    """Remove leftovers: blobs that no document names and that are older than ``age`` seconds, and expired slices.

    What is younger may be somebody's upload under way: uploads give up after half an hour.
    """
    blobs = yield from home.blobs(only)  # before the documents: what is written meanwhile is not among them
    removed: list[Blob] = []
    expired = 0
    problems: list[str] = []
    found = {only} if only else {*(yield from home.filters()), *(blob.filter for blob in blobs)}
    for name in sorted(found):
        mine = [blob for blob in blobs if blob.filter == name and blob.age >= age]
        try:
            text, registration = yield from read_registration(home, name)
        except ArchiveCorrupt as error:
            problems.append(f"{error}: nothing of {name!r} was removed")
            continue
        if text is not None and registration is not None and registration.dropped:
            expired += yield from unregister(home, name, registration.config.uid)
            continue
        config = registration.config if registration else None
        expired += yield from _expire(home, name, config)
        needed: set[str] = set()
        for _ in range(2):  # twice, because a checkpoint may have moved between two documents that were read
            read = yield from list_documents(home, name, config)
            needed |= {content.blob for each in read for content in each.contents()}
        damaged = {each.key.uid for each in read if each.found is None}
        problems += [f"{each.problem}: leftovers of {name!r} were kept" for each in read if each.found is None]
        doomed = [blob for blob in mine if blob.id not in needed and blob.id.split("-")[0] not in damaged]
        yield from home.delete(name, [blob.id for blob in doomed])
        removed += doomed
    return Pruned(len(removed), sum(blob.size for blob in removed), expired, tuple(problems))


def _expire(home: Home, name: str, config: Config | None) -> Flow[int]:
    """Remove closed slices that no checkpoint counts among the window's any more."""
    read = yield from list_documents(home, name, config)
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


def _document(each: Listed) -> Document:
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
