"""Maintain an archive without Redis: list its filters, verify all that it has, and remove leftovers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from urifilter_redis.archive.verifying import Listed, list_documents, missing, verified
from urifilter_redis.bloom.sizing import size_text
from urifilter_redis.engine.backend import Backend, Blob, Key, read_to_replace
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.flows.doctor import Finding
from urifilter_redis.protocol.config import Config
from urifilter_redis.storage.documents import Checkpoint, Manifest, Registration
from urifilter_redis.storage.registry import Found, find_registration, unregister

#: Bytes of room that the disk of an archive has at least.
ROOM = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A closed slice or a checkpoint in an archive; the attributes are the keys of its JSON.

    Attributes:
        kind: ``slice`` or ``checkpoint``.
        shard: the shard's number, from 0.
        epoch: the epoch of the slice, or the shard's epoch when the checkpoint was made.
        number: the checkpoint's number; 0 for a slice.
        time: when the checkpoint began or the slice was closed, seconds since 1970.
        inserted: how many items were answered "new" and are in it.
        size: bytes of the bitmaps and records, unpacked.
        packed: bytes of the bitmaps and records in the archive.
        problem: a text that says why it cannot be used; None if no problem is known.
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
        filter: the filter's name.
        uid: the filter's uid, 16 hexadecimal digits.
        layout: ``blocked``, ``classic`` or ``counting``.
        retention: ``forever``, ``growing``, ``ring`` or ``rolling``.
        capacity: the number of items that the filter is made for.
        shards: the number of shards.
        created: when the filter was registered, seconds since 1970.
        checkpointed: the number of shards that have a checkpoint.
        begun: when the oldest of the shards' newest checkpoints began, seconds since 1970; None if a shard has none.
        slices: the number of closed slices, over all shards.
        packed: bytes of the blobs that the documents name, without leftovers.
        problems: one text for each known problem; blobs are not read for this.
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
    """The result of ``verify_all``.

    Attributes:
        filters: the number of filters that the archive has anything of.
        documents: the number of documents that were read, each with its blobs.
        packed: bytes of the blobs that were read.
        problems: one text for each problem.
        checkpoints: for each registered filter, by its name, and each of its shards, from 0, the number of its
            checkpoints that are whole: a restore takes the newest, and falls back to the other.
    """

    filters: int
    documents: int
    packed: int
    problems: tuple[str, ...]
    checkpoints: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of ``prune``.

    Attributes:
        blobs: the number of leftovers of uploads that were removed.
        packed: bytes of these leftovers.
        documents: the number of expired closed slices, and of filters with an interrupted drop, that were removed.
        problems: one text for each damaged document or registration; the leftovers of its filter were kept.
    """

    blobs: int
    packed: int
    documents: int
    problems: tuple[str, ...]


def names(backend: Backend) -> Flow[list[str]]:
    """Return the names of the registered filters, sorted.

    Example:
        >>> drive(names(open_backend("file:///srv/uris")))
        ['images', 'news']
    """
    found = []
    for name in (yield from backend.filters()):
        text, _ = yield from read_to_replace(backend, Key(name))  # who opens a filter hears of a damaged registration
        if text is not None:
            found.append(name)
    return found


def entries(backend: Backend) -> Flow[list[Entry]]:
    """Return one entry for each filter in an archive.

    The entry of a filter that cannot be read has its name and the problem; its other attributes are empty or 0.

    Example:
        >>> [(entry.filter, entry.slices) for entry in drive(entries(open_backend("file:///srv/uris")))]
        [('images', 0), ('news', 0)]
    """
    found = []
    for name in (yield from backend.filters()):
        try:
            known = yield from find_registration(backend, name)
            registration = known.registration
            listed = yield from list_documents(backend, name, registration.config if registration else None)
        except ArchiveCorrupt as error:
            found.append(_unreadable(name, str(error)))
            continue
        if registration is not None:
            lost = _missing(registration, listed, complete=known.complete)
            found.append(_entry(registration, listed, [*filter(None, [known.problem]), *lost]))
        elif listed:
            found.append(_unreadable(name, _unregistered(backend, name)))
    return found


def _unreadable(name: str, problem: str) -> Entry:
    return Entry(name, "", "", "", 0, 0, 0.0, 0, None, 0, 0, (problem,))


def _unregistered(backend: Backend, name: str) -> str:
    return f"archive {backend.shown}: the registration of {name!r} is missing, and there are documents of it"


def _missing(registration: Registration, listed: list[Listed], *, complete: bool) -> list[str]:
    if registration.dropped:
        return []
    return missing(registration.config, registration.filter, listed, complete=complete)


def _entry(registration: Registration, read: list[Listed], lost: list[str]) -> Entry:
    config = registration.config
    last: dict[int, Checkpoint] = {}
    for each in read:
        if isinstance(each.found, Checkpoint) and each.found.number > getattr(last.get(each.key.shard), "number", 0):
            last[each.key.shard] = each.found
    begun = min(each.begun for each in last.values()) / 1000 if len(last) == config.shards else None
    blobs = {content.blob: content.packed for each in read for content in each.contents()}
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


def examine_archive(backend: Backend) -> Flow[list[Finding]]:
    """Return the findings about an archive: whether this user can use it, and what is damaged or missing there.

    Documents are read, and no blobs. Nothing is written.
    """
    found, failure = [], ""
    try:
        found = yield from entries(backend)
    except ArchiveMissing:  # its obstacles say so
        pass
    except ArchiveError as error:
        failure = str(error)
    needed = max([ROOM, *(each.packed // max(1, each.shards) for each in found)])  # a shard's checkpoints are in turn
    try:
        obstacles = yield from backend.obstacles(needed)
    except ArchiveError as error:
        obstacles = [("danger", str(error))]
    findings = [Finding(level, "archive", f"{backend.shown}: {text}") for level, text in obstacles]
    if failure and all(each.level != "danger" for each in findings):
        findings.append(Finding("danger", "archive", failure))
    if not findings:
        text = f"{len(found):,} filter{'' if len(found) == 1 else 's'}, {size_text(sum(each.packed for each in found))}"
        findings.append(Finding("ok", "archive", f"{backend.shown}: {text}"))
    for each in found:
        if each.problems:
            more = f" and {len(each.problems) - 1:,} more" if len(each.problems) > 1 else ""
            text = f"{each.problems[0]}{more}: urifilter archive verify"
            findings.append(Finding("danger", f"archive of {each.filter}", text))
    return findings


def not_kept(name: str) -> str:
    """Return the text about a filter without an archive, for those who have named one."""
    advice = f"make another with create --like {name} and the archive, and merge this one into it with union"
    return f"{name} has no archive, so nothing keeps it: {advice}"


def examine_kept(backend: Backend, name: str, uid: str, archive: str | None) -> Flow[Finding | None]:
    """Return the finding about a filter in Redis that an archive, which somebody has named, does not keep."""
    if archive in {None, "redis"}:
        return Finding("danger", f"archive of {name}", not_kept(name))
    try:
        yield from backend.filters()
        found = (yield from find_registration(backend, name)).registration
    except ArchiveError:  # there is a finding about the archive
        return None
    if found is not None and not found.dropped and found.config.uid == uid:
        return None
    text = f"{name} is kept in {archive}, and {backend.shown} does not have it: name the right archive"
    return Finding("danger", f"archive of {name}", text)


def show(backend: Backend, name: str) -> Flow[tuple[Registration, list[Document]]]:
    """Return the registration of a filter, and its checkpoints and closed slices.

    Example:
        >>> registration, found = drive(show(open_backend("file:///srv/uris"), "news"))
        >>> [document.kind for document in found]
        ['checkpoint']

    Raises:
        ArchiveMissing: the archive does not have the filter.
        ArchiveCorrupt: the filter's registration is damaged.
    """
    registration = (yield from find_registration(backend, name)).registration
    if registration is None:
        raise _not_there(backend, name)
    read = yield from list_documents(backend, name, registration.config)
    return registration, [_document(each) for each in read]


def _not_there(backend: Backend, name: str) -> ArchiveMissing:
    return ArchiveMissing(f"archive {backend.shown}: there is no filter {name!r}")


def verify_all(backend: Backend, only: str | None, report: Callable[[int, int], object]) -> Flow[Verified]:
    """Read all documents and blobs of one filter, or of all filters, and check them.

    Args:
        backend: the backend of the archive.
        only: the name of the filter to verify; None: all filters.
        report: called after each document of a filter with the number of documents done and the number of all.

    Example:
        >>> found = drive(verify_all(open_backend("file:///srv/uris"), None, lambda done, total: None))
        >>> found.problems
        ()

    Raises:
        ArchiveMissing: the archive has nothing of the filter ``only``, or there is no archive.
        ArchiveError: the archive failed before anything was read.
    """
    found = [only] if only else (yield from backend.filters())
    verifier = _Verifier(backend, report)
    for name in found:
        try:
            known = yield from verifier.verify(name)
        except ArchiveError as error:  # the other filters may still be readable
            verifier.problems.append(str(error))
            continue
        if only and not known:
            raise _not_there(backend, name)
    return Verified(len(found), verifier.documents, verifier.packed, tuple(verifier.problems), verifier.checkpoints)


class _Verifier:
    """Verifies filters, and collects what ``Verified`` has of them."""

    def __init__(self, backend: Backend, report: Callable[[int, int], object]) -> None:
        self._backend, self._report = backend, report
        self.documents = self.packed = 0
        self.problems: list[str] = []
        self.checkpoints: dict[str, list[int]] = {}

    def verify(self, name: str) -> Flow[bool]:
        """Verify one filter; return whether the archive has anything of it."""
        known, damaged = Found(None, None), False
        try:
            known = yield from find_registration(self._backend, name)
        except ArchiveCorrupt as error:
            self.problems.append(str(error))
            damaged = True
        self.problems += [known.problem] if known.problem else []
        registration = known.registration
        config = registration.config if registration else None
        listed = yield from list_documents(self._backend, name, config)
        if registration is None and listed and not damaged:
            self.problems.append(_unregistered(self._backend, name))
        whole = [0] * (config.shards if config else 0)
        for done, each in enumerate(listed, 1):
            if found := (yield from verified(self._backend, each, config)):
                self.documents += 1
                self.packed += sum(content.packed for content in found.contents())
                self.problems += [found.problem] if found.problem else []
                if config and not found.problem and found.key.kind == "checkpoint":
                    whole[found.key.shard] += 1
            self._report(done, len(listed))
        if registration and (lost := _missing(registration, listed, complete=known.complete)):
            # a checkpoint that was written during the first listing hides another
            again = yield from list_documents(self._backend, name, config)
            still = set(_missing(registration, again, complete=known.complete))
            self.problems += [problem for problem in lost if problem in still]
        if registration and not registration.dropped:
            self.checkpoints[name] = whole
        return damaged or bool(listed) or registration is not None


def prune(backend: Backend, age: float, only: str | None = None) -> Flow[Pruned]:
    """Remove the blobs that no document names, and expired closed slices.

    Args:
        backend: the backend of the archive.
        age: seconds. Younger blobs are kept, because they may belong to an upload under way; an upload gives up
            after half an hour.
        only: the name of the filter to prune; None: all filters.

    Example:
        >>> drive(prune(open_backend("file:///srv/uris"), age=3600.0)).blobs
        0

    Raises:
        ArchiveError: the archive failed.
    """
    blobs = yield from backend.blobs(only)  # before the documents, so that no blob of a later document is among them
    removed: list[Blob] = []
    expired = 0
    problems: list[str] = []
    found = {only} if only else {*(yield from backend.filters()), *(blob.filter for blob in blobs)}
    for name in sorted(found):
        mine = [blob for blob in blobs if blob.filter == name and blob.age >= age]
        try:
            known = yield from find_registration(backend, name)
        except ArchiveCorrupt as error:
            problems.append(f"{error}: nothing of {name!r} was removed")
            continue
        registration = known.registration
        if registration is not None and registration.dropped:
            expired += yield from unregister(backend, name, registration.config.uid)
            continue
        config = registration.config if registration else None
        expired += yield from _expire(backend, name, config)
        needed: set[str] = set()
        for _ in range(2):  # twice: a checkpoint written between the reads of its two documents would be missed
            read = yield from list_documents(backend, name, config)
            needed |= {content.blob for each in read for content in each.contents()}
        damaged = {each.key.uid for each in read if each.found is None}
        problems += [f"{each.problem}: leftovers of {name!r} were kept" for each in read if each.found is None]
        doomed = [blob for blob in mine if blob.id not in needed and blob.id.split("-")[0] not in damaged]
        yield from backend.delete(name, [blob.id for blob in doomed])
        removed += doomed
    return Pruned(len(removed), sum(blob.size for blob in removed), expired, tuple(problems))


def _expire(backend: Backend, name: str, config: Config | None) -> Flow[int]:
    """Remove the closed slices that are older than the oldest slice of each checkpoint; return their number."""
    read = yield from list_documents(backend, name, config)
    oldest: dict[tuple[str, int], int] = {}
    for each in read:
        if isinstance(each.found, Checkpoint) and not each.problem:
            at = (each.key.uid, each.key.shard)
            epoch = each.found.shard_state().oldest
            oldest[at] = min(epoch, oldest.get(at, epoch))
    removed = 0
    for each in read:
        if each.key.kind == "slice" and each.key.epoch < oldest.get((each.key.uid, each.key.shard), 0):
            removed += yield from backend.swap(each.key, each.text, None)
    return removed


def _document(each: Listed) -> Document:
    key, found, problem = each.key, each.found, each.problem or None
    if found is None:
        return Document(key.kind, key.shard, key.epoch, problem=problem)
    size, packed = sum(content.size for content in each.contents()), sum(content.packed for content in each.contents())
    if isinstance(found, Manifest):
        return Document("slice", key.shard, key.epoch, 0, found.closed / 1000, found.inserted, size, packed, problem)
    try:
        state = found.shard_state()
        epoch, inserted = state.epoch, state.items
    except ArchiveCorrupt:
        epoch = inserted = 0
    begun = found.begun / 1000
    return Document("checkpoint", key.shard, epoch, found.number, begun, inserted, size, packed, problem)
