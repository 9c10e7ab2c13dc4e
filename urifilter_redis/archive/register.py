"""Which filter a name stands for in an archive: decided there first, by the first creator."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from urifilter_redis.archive import documents
from urifilter_redis.archive.home import Key
from urifilter_redis.archive.manifest import FORMAT, Registration
from urifilter_redis.errors import ArchiveCorrupt, ArchiveMissing

if TYPE_CHECKING:
    from urifilter_redis.archive.home import Home
    from urifilter_redis.config import Config
    from urifilter_redis.session import Session
    from urifilter_redis.steps import Flow

__all__ = ["check_registered", "home_of", "read_registration", "register", "registered", "unregister"]


def home_of(session: Session) -> Home:
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
            yield from unregister(home, name)
        if any(key.kind != "filter" for key in (yield from home.keys(name))):
            text = (
                f"there are checkpoints of {name!r}, and its registration is missing: bring it back, or drop the filter"
            )
            raise ArchiveCorrupt(f"archive {home.shown}: {text}")
        if (yield from home.swap(Key(name), None, documents.dump(document))):
            return config, True


def check_registered(session: Session) -> Flow[None]:
    """Check that the archive that the caller named is the filter's.

    Raises:
        ArchiveMissing: it does not have this filter.
    """
    home = home_of(session)
    there = yield from registered(home, session.keys.name)
    if there is None or there.uid != session.config.uid:
        found = "has another filter of this name" if there else "does not have it"
        text = f"it needs its archive {session.config.archive}, and {home.shown} {found}"
        raise ArchiveMissing(f"{session.where}: {text}")


def unregister(home: Home, name: str) -> Flow[bool]:
    """Remove a filter from an archive; return whether it was there. Whoever does it again finishes it."""
    text, there = yield from read_registration(home, name)
    if text is None or there is None:
        return (yield from _remove_all(home, name, ""))
    if not there.dropped:
        dropped = documents.dump(dataclasses.replace(there, dropped=True))
        if not (yield from home.swap(Key(name), text, dropped)):
            return (yield from unregister(home, name))
        text = dropped
    yield from _remove_all(home, name, there.config.uid)
    return (yield from home.swap(Key(name), text, None))


def _remove_all(home: Home, name: str, uid: str) -> Flow[bool]:
    """Remove the documents and blobs of a filter, or of all of its name; return whether there were any."""
    keys = [key for key in (yield from home.keys(name)) if key.kind != "filter" and key.uid.startswith(uid)]
    for key in keys:
        yield from home.swap(key, (yield from home.read(key)), None)
    blobs = yield from home.blobs(name)
    yield from home.delete(name, [blob.id for blob in blobs if blob.id.startswith(uid)])
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
