"""Which filter a name stands for in an archive: decided there first, by the first creator."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from urifilter_redis.archive.format import documents
from urifilter_redis.archive.format.manifest import FORMAT, Registration
from urifilter_redis.engine.home import Key, read_to_replace
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing

if TYPE_CHECKING:
    from urifilter_redis.engine.home import Home
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.config import Config

__all__ = [
    "check_registered",
    "is_complete",
    "note_complete",
    "publish",
    "read_registration",
    "register",
    "registered",
    "require_archive",
    "unregister",
]

#: Beside a registration: every shard has had a checkpoint.
_COMPLETE = 1


def require_archive(session: Session) -> Home:
    """Return the home of the filter's archive.

    Raises:
        ArchiveMissing: the filter has none, or the caller has not named it.
    """
    needed = session.config.archive
    if needed in {None, "redis"}:
        raise ArchiveMissing(
            f"{session.where}: it was made without an archive (archive=, --archive, URIFILTER_ARCHIVE)"
        )
    if session.home is None:
        raise ArchiveMissing(f"{session.where}: it needs its archive {needed}: name it (archive=, --archive)")
    return session.home


def registered(home: Home, name: str) -> Flow[Config | None]:
    """Return the configuration of the filter of that name; None if there is none.

    Raises:
        ArchiveCorrupt: the registration is damaged.
    """
    _, there = yield from read_registration(home, name)
    return None if there is None or there.dropped else there.config


def register(home: Home, name: str, config: Config) -> Flow[tuple[Config, bool]]:
    """Register a filter unless its name is; return the configuration that counts, and whether it is this one."""
    document = Registration(format=FORMAT, filter=name, created=time.time(), config=config)
    while True:
        _, there = yield from read_registration(home, name)
        if there is not None and not there.dropped:
            return there.config, False
        if there is not None:
            yield from unregister(home, name, there.config.uid)
        if any(key.kind != "filter" for key in (yield from home.keys(name))):
            text = (
                f"there are checkpoints of {name!r}, and its registration is missing: bring it back, or drop the filter"
            )
            raise ArchiveCorrupt(f"archive {home.shown}: {text}")
        if (yield from home.swap(Key(name), None, documents.dump(document))):
            return config, True


def check_registered(session: Session) -> Flow[None]:
    """Check that the archive that the caller named is there, and is the filter's.

    Raises:
        ArchiveMissing: it does not have this filter.
    """
    home = require_archive(session)
    if found := (yield from _not_its(home, session.keys.name, session.config.uid)):
        text = f"it needs its archive {session.config.archive}, and {home.shown} {found}"
        text += "; if a drop of it was stopped half-way, drop it again"
        raise ArchiveMissing(f"{session.where}: {text}")


def _not_its(home: Home, name: str, uid: str) -> Flow[str]:
    """Say in which way an archive is not that of a filter; nothing if it is."""
    there = yield from registered(home, name)
    if there is None:
        return "does not have it (is that mounted?)"
    return "" if there.uid == uid else "has another filter of this name"


def publish(home: Home, key: Key, old: bytes | None, new: bytes) -> Flow[bool]:
    """Replace a document of a registered filter; False: it is not ``old``.

    Raises:
        ArchiveMissing: the archive does not have the filter, or not any more, nor this document.
        ArchiveError: the archive failed; what the document is now is not known.
    """
    yield from _check_its(home, key)
    if not (yield from home.swap(key, old, new)):
        return False
    try:
        yield from _check_its(home, key)
    except ArchiveMissing as error:  # dropped meanwhile: whoever did so may have been past this
        if (yield from home.swap(key, new, None)):
            raise
        raise ArchiveError(f"{error} (it was there a moment ago)") from error
    return True


def _check_its(home: Home, key: Key) -> Flow[None]:
    if found := (yield from _not_its(home, key.filter, key.uid)):
        raise ArchiveMissing(f"archive {home.shown}, for {key.filter!r} of uid {key.uid}: it {found}")


def note_complete(home: Home, name: str) -> Flow[None]:
    """Note that every shard has a checkpoint, so that one that has none is known to have lost it."""
    text, there = yield from read_registration(home, name)
    if text is not None and there is not None and not there.dropped and not is_complete(text):
        yield from home.swap(Key(name), text, documents.dump(there, _COMPLETE))


def is_complete(text: bytes | None) -> bool:
    """Whether every shard of a filter has had a checkpoint, by what stands beside its registration."""
    return documents.note_of(text) == _COMPLETE


def unregister(home: Home, name: str, uid: str) -> Flow[bool]:
    """Remove a filter from an archive; return whether it was there. Whoever does it again finishes it.

    Args:
        home: of the archive.
        name: of the filter.
        uid: of the filter, so that another one that is registered by now stays; empty: of documents of this name
            that have lost their registration.
    """
    text, there = yield from read_registration(home, name)
    if text is None or there is None:
        return (yield from _remove_all(home, name, uid, None))
    if there.config.uid != uid:
        return False
    if not there.dropped:
        dropped = documents.dump(dataclasses.replace(there, dropped=True))
        if not (yield from home.swap(Key(name), text, dropped)):
            return (yield from unregister(home, name, there.config.uid))
        text = dropped
    yield from _remove_all(home, name, there.config.uid, text)
    return (yield from home.swap(Key(name), text, None))


def _remove_all(home: Home, name: str, uid: str, registration: bytes | None) -> Flow[bool]:
    """Remove the documents and blobs of a filter, or (no ``uid``) of all of its name; return whether there were any.

    ``registration`` is what was read; if it is another by now, what was found may be a new filter's, and stays.
    """
    found = {key.uid for key in (yield from home.keys(name))} | {
        blob.id.partition("-")[0] for blob in (yield from home.blobs(name))
    }
    uids = (uid,) if uid else tuple(found - {""})
    if (yield from home.read(Key(name))) != registration:
        return False
    keys = [key for key in (yield from home.keys(name)) if key.uid in uids]
    for key in keys:
        yield from home.swap(key, (yield from read_to_replace(home, key))[0], None)
    blobs = yield from home.blobs(name)
    yield from home.delete(name, [blob.id for blob in blobs if blob.id.startswith(uids)])
    return bool(keys)


def read_registration(home: Home, name: str) -> Flow[tuple[bytes | None, Registration | None]]:
    """Return the registration of a name, as it is and as it reads; both None if there is none.

    Raises:
        ArchiveCorrupt: it is damaged.
    """
    text = yield from home.read(Key(name))
    if text is None:
        return None, None
    there = documents.load(Registration, text, f"archive {home.shown}: the registration of {name!r}")
    there.check(name)
    return text, there
