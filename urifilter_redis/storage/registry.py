"""The registry: which filter a name stands for in an archive, and the user's own notes of filters that have one.

The first creator writes the registration. A note, like ssh's known hosts, is a small file in the user's data folder: a
Redis without persistence may come back empty, and a ``create`` that does not name the archive would then make an empty
filter of the same name. The note prevents that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from urifilter_redis.bloom.sizing import REDISBLOOM
from urifilter_redis.engine.backend import Backend, Key, read_to_replace
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.protocol.config import FORMAT, Config
from urifilter_redis.storage import documents
from urifilter_redis.storage.documents import Checkpoint, Registration
from urifilter_redis.transport.embedded import default_data_dir
from urifilter_redis.transport.url import split

if TYPE_CHECKING:
    from urifilter_redis.engine.session import Session

log = logging.getLogger("urifilter_redis")

#: The notes beside a registration (see ``documents``) once every shard has had a checkpoint, and before that once every
#: shard was made.
_COMPLETE, _MADE = 1, 2

#: The exceptions of an unusable folder.
_UNUSABLE = (OSError, UnicodeError)


def require_archive(session: Session) -> Backend:
    """Return the backend of the filter's archive.

    Raises:
        ArchiveMissing: the filter was created without an archive, or the caller has not named it.
    """
    needed = session.config.archive
    if needed in {None, "redis"}:
        text = "it was made without an archive (archive=, --archive, URIFILTER_ARCHIVE)"
        if session.config.layout == REDISBLOOM:
            text = "layout redisbloom has no archive: for one, make a filter of layout blocked or classic"
        raise ArchiveMissing(f"{session.where}: {text}")
    if session.backend is None:
        raise ArchiveMissing(f"{session.where}: it needs its archive {needed}: name it (archive=, --archive)")
    return session.backend


def registered(backend: Backend, name: str) -> Flow[Config | None]:
    """Return the configuration of the registered filter; None if no filter of this name is registered.

    A damaged registration is written anew, from the newest checkpoint that is whole.

    Raises:
        ArchiveCorrupt: the registration is damaged, and no checkpoint has it.

    Example:
        >>> backend = open_backend("file:///srv/uris")
        >>> drive(registered(backend, "news")).capacity
        1000000
    """
    found = yield from find_registration(backend, name)
    if found.registration is None or found.registration.dropped:
        return None
    if found.problem:
        yield from _write_anew(backend, name, found)
    return found.registration.config


def register(backend: Backend, name: str, config: Config, *, complete: bool = False) -> Flow[tuple[Config, bool]]:
    """Register a filter, unless a filter of this name is registered; ``complete``: as ``note_complete`` notes.

    Returns:
        The configuration of the registered filter, and whether this call registered it.

    Raises:
        ArchiveCorrupt: the registration is damaged, or is missing although the filter has checkpoints.
    """
    document = Registration(format=FORMAT, filter=name, created=time.time(), config=config)
    while True:
        found = (yield from find_registration(backend, name)).registration
        if found is not None and not found.dropped:
            return found.config, False
        if found is not None:
            yield from unregister(backend, name, found.config.uid)
        if any(key.kind != "filter" for key in (yield from backend.keys(name))):
            text = f"there are checkpoints of {name!r}, and its registration is missing"
            raise ArchiveCorrupt(f"archive {backend.shown}: {text}: bring it back, or drop the filter")
        if (yield from backend.swap(Key(name), None, documents.dump(document, _COMPLETE if complete else 0))):
            return config, True


def check_registered(session: Session) -> Flow[None]:
    """Check that the archive that the caller named has this filter.

    Raises:
        ArchiveMissing: the archive does not have it, or has another filter of this name.
    """
    backend = require_archive(session)
    if found := (yield from _mismatch(backend, session.keys.name, session.config.uid)):
        text = f"it needs its archive {session.config.archive}, and {backend.shown} {found}"
        text += "; if a drop of it was stopped half-way, drop it again"
        raise ArchiveMissing(f"{session.where}: {text}")


def is_dropped(session: Session) -> Flow[bool]:
    """Whether the archive has lost the filter by a drop; an archive that is away does not pass for that.

    Raises:
        ArchiveMissing: the archive is away.
    """
    backend = require_archive(session)
    if not (yield from _mismatch(backend, session.keys.name, session.config.uid)):
        return False
    if not (yield from backend.has_place(session.keys.name)):
        yield from check_registered(session)  # it may be back by now
        return False
    # the archive may have been away at the first reading alone
    return bool((yield from _mismatch(backend, session.keys.name, session.config.uid)))


def _mismatch(backend: Backend, name: str, uid: str) -> Flow[str]:
    """Return a text that says why an archive is not that of a filter; an empty text if it is."""
    config = yield from registered(backend, name)
    if config is None:
        return "does not have it (is that mounted?)"
    return "" if config.uid == uid else "has another filter of this name"


def publish(backend: Backend, key: Key, old: bytes | None, new: bytes) -> Flow[bool]:
    """Replace a document of a registered filter if its text is still ``old``; return whether it was replaced.

    Raises:
        ArchiveMissing: the archive does not have the filter, or has lost it; the new document is not there.
        ArchiveError: the archive failed; the document may hold the old or the new text.
    """
    yield from _check_owner(backend, key)
    if not (yield from backend.swap(key, old, new)):
        return False
    try:
        yield from _check_owner(backend, key)
    except ArchiveMissing as error:  # a drop may have listed the documents before this one was written
        if (yield from backend.swap(key, new, None)):
            raise
        raise ArchiveError(f"{error} (it was there a moment ago)") from error
    return True


def _check_owner(backend: Backend, key: Key) -> Flow[None]:
    if found := (yield from _mismatch(backend, key.filter, key.uid)):
        raise ArchiveMissing(f"archive {backend.shown}, for {key.filter!r} of uid {key.uid}: it {found}")


def note_complete(backend: Backend, name: str) -> Flow[None]:
    """Note that every shard has a checkpoint, or soon gets one. From then on a shard without one counts as damaged."""
    known = yield from find_registration(backend, name)
    found = known.registration
    if found is not None and not found.dropped and not is_complete(known.text):
        yield from backend.swap(Key(name), known.text, documents.dump(found, _COMPLETE))


def note_made(session: Session) -> Flow[None]:
    """Note that every shard was made. From then on a shard that is missing counts as lost, and not as half made.

    An archive that this user may not write to is no reason to fail: the next client, or a checkpoint, notes it.
    """
    backend, name = require_archive(session), session.keys.name
    known = yield from find_registration(backend, name)
    found = known.registration
    if found is not None and found.config.uid == session.config.uid and not (found.dropped or known.made):
        with contextlib.suppress(ArchiveError):
            yield from backend.swap(Key(name), known.text, documents.dump(found, _MADE))


def is_complete(text: bytes | None) -> bool:
    """Whether every shard should have a checkpoint, by the note in the text of the filter's registration."""
    return documents.note_of(text) == _COMPLETE


def unregister(backend: Backend, name: str, uid: str) -> Flow[bool]:
    """Remove a filter from an archive; return whether it was there. A second call finishes an interrupted one.

    Args:
        backend: the backend of the archive.
        name: the filter's name.
        uid: the filter's uid. A filter of another uid that is registered by now stays. Empty: remove the documents
            of this name that have no registration.
    """
    known = yield from find_registration(backend, name)
    text, found = known.text, known.registration
    if found is None:
        return (yield from _remove_all(backend, name, uid, None))
    if found.config.uid != uid:
        return False
    if not found.dropped:
        dropped = documents.dump(dataclasses.replace(found, dropped=True))
        if not (yield from backend.swap(Key(name), text, dropped)):
            return (yield from unregister(backend, name, uid))
        text = dropped
    yield from _remove_all(backend, name, uid, text)
    return (yield from backend.swap(Key(name), text, None))


def _remove_all(backend: Backend, name: str, uid: str, registration: bytes | None) -> Flow[bool]:
    """Remove the documents and blobs of a filter, or without a uid of all that had its name.

    If the registration is no longer the text that the caller read, nothing is removed, because the documents may belong
    to a new filter. Return whether there were documents.
    """
    found = {key.uid for key in (yield from backend.keys(name))}
    found |= {blob.id.partition("-")[0] for blob in (yield from backend.blobs(name))}
    uids = (uid,) if uid else tuple(found - {""})
    if (yield from backend.read(Key(name))) != registration:
        return False
    keys = [key for key in (yield from backend.keys(name)) if key.uid in uids]
    for key in keys:
        yield from backend.swap(key, (yield from read_to_replace(backend, key))[0], None)
    blobs = yield from backend.blobs(name)
    yield from backend.delete(name, [blob.id for blob in blobs if blob.id.startswith(uids)])
    return bool(keys)


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a registration.

    Attributes:
        text: its text, to pass to ``swap`` as ``old``; None: there is none.
        registration: the registration; if it is damaged, the one of the newest checkpoint.
        complete: whether every shard should have a checkpoint: each has had one, or an import brings it.
        made: whether every shard was made once, so that one that is missing is lost.
        problem: why it was taken from a checkpoint; otherwise empty.
    """

    text: bytes | None
    registration: Registration | None
    complete: bool = False
    made: bool = False
    problem: str = ""


def find_registration(backend: Backend, name: str) -> Flow[Found]:
    """Find the registration of a name, without writing anything.

    Raises:
        ArchiveCorrupt: the registration is damaged, and no checkpoint has it.
    """
    text, problem = yield from read_to_replace(backend, Key(name))
    if text is None:
        return Found(None, None)
    try:
        found = _loaded(text, problem, f"archive {backend.shown}: the registration of {name!r}")
        found.check(name)
    except ArchiveCorrupt as error:
        if documents.is_whole(text) or b'"dropped": true' in text:  # it was written so, or the filter is being removed
            raise
        kept, complete = yield from _kept(backend, name)
        if kept is None:
            raise
        return Found(text, kept, complete, made=True, problem=f"{error}: the newest checkpoint has it, too")
    return Found(text, found, is_complete(text), made=documents.note_of(text) in {_COMPLETE, _MADE})


def _loaded(text: bytes, problem: str, what: str) -> Registration:
    if problem:
        raise ArchiveCorrupt(problem)
    return documents.load(Registration, text, what)


def _kept(backend: Backend, name: str) -> Flow[tuple[Registration | None, bool]]:
    """Return the registration that the newest of a name's checkpoints has, and whether all shards have checkpoints.

    None: no checkpoint has it, or there are checkpoints of several filters.
    """
    found: list[Checkpoint] = []
    keys = [key for key in (yield from backend.keys(name)) if key.kind == "checkpoint"]
    for key in keys:
        text, problem = yield from read_to_replace(backend, key)
        with contextlib.suppress(ArchiveCorrupt):  # verify tells of it
            if text is not None and not problem:
                checkpoint = documents.load(Checkpoint, text, "a checkpoint")
                found += [checkpoint] if checkpoint.config and checkpoint.config.uid == key.uid else []
    newest = max(found, key=lambda each: each.begun, default=None)
    if newest is None or newest.config is None or len({key.uid for key in keys}) > 1:
        return None, False
    created = int(newest.state.get("created", 0)) / 1000
    registration = Registration(format=FORMAT, filter=name, created=created, config=newest.config)
    try:
        registration.check(name)
    except ArchiveCorrupt:
        return None, False
    return registration, {key.shard for key in keys} == set(range(newest.config.shards))


def _write_anew(backend: Backend, name: str, found: Found) -> Flow[None]:
    """Write a damaged registration anew, unless this user may not write the archive: it is found again then."""
    assert found.registration is not None  # noqa: S101 - it was found
    try:
        made = documents.dump(found.registration, _COMPLETE if found.complete else _MADE)
        written = yield from backend.swap(Key(name), found.text, made)
    except ArchiveError as error:
        log.warning("%s; it cannot be written anew: %s", found.problem, error)
    else:
        if written:
            log.warning("%s; it is written anew", found.problem)


def remember(session: Session) -> None:
    """Note that the filter has an archive; an unusable folder is no reason to fail."""
    archive = session.config.archive or ""
    if archive in {"", "redis"} or _noted_archive(session) == archive:
        return
    with contextlib.suppress(*_UNUSABLE):
        path = _note_path(session)
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(archive)
        part.replace(path)


def check_unknown(session: Session) -> None:
    """Check, before a filter is made without an archive, that no filter of this name had one.

    Raises:
        ArchiveMissing: a filter of this name had an archive.
    """
    if archive := _noted_archive(session):
        text = f"it is gone, and had the archive {archive}: name that (archive=, --archive) to restore the filter"
        if session.backend is not None:
            text = f"it had the archive {archive}, and {session.backend.shown} does not have the filter"
            text += ": is that mounted? If so, name the right archive"
        raise ArchiveMissing(f"{session.where}: {text}, or drop the filter to begin anew")


def forget(session: Session) -> None:
    """Remove the note of a filter that is dropped."""
    with contextlib.suppress(*_UNUSABLE):
        _note_path(session).unlink(missing_ok=True)


def _noted_archive(session: Session) -> str:
    try:
        return _note_path(session).read_text()
    except _UNUSABLE:
        return ""


def _note_path(session: Session) -> Path:
    name = f"{_canonical(session.server)}\n{session.keys.prefix}\n{session.keys.name}"
    return default_data_dir() / "archives" / hashlib.sha256(name.encode()).hexdigest()[:32]


def _canonical(server: str) -> str:
    """Return a server's address without the user, with IP addresses for names; several hosts are in order."""
    parts = split(server)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    found = sorted(_with_ip(each) for each in hosts if each)
    return f"{','.join(found)}{parts.path}" if found else server


def _with_ip(host: str) -> str:
    parts = urlsplit(f"redis://{host}")
    address = parts.hostname or ""
    with contextlib.suppress(OSError):
        address = str(socket.getaddrinfo(address, None)[0][4][0])
    if address == "::1" or address.startswith("127."):
        address = "127.0.0.1"
    return f"{address}:{parts.port}"
