"""The known archives: the user's own notes of the filters that have one, like ssh's known hosts.

Each note is a small file in the user's data folder. A Redis without persistence may come back empty. A ``create`` that
does not name the archive would then make an empty filter of the same name; the note prevents that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from urifilter_redis.errors import ArchiveMissing
from urifilter_redis.transport.embedded import default_data_dir
from urifilter_redis.transport.url import split

if TYPE_CHECKING:
    from pathlib import Path

    from urifilter_redis.engine.session import Session

__all__ = ["check_unknown", "forget", "remember"]

#: The exceptions of an unusable folder.
_UNUSABLE = (OSError, UnicodeError)


def remember(session: Session) -> None:
    """Note that the filter has an archive; an unusable folder is no reason to fail."""
    archive = session.config.archive or ""
    if archive in {"", "redis"} or _read(session) == archive:
        return
    try:
        path = _path(session)
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(archive)
        part.replace(path)
    except _UNUSABLE:
        return


def check_unknown(session: Session) -> None:
    """Check, before a filter is made without an archive, that no filter of this name had one.

    Raises:
        ArchiveMissing: a filter of this name had an archive.
    """
    if archive := _read(session):
        text = f"it is gone, and had the archive {archive}: name that (archive=, --archive) to restore the filter"
        if session.home is not None:
            text = f"it had the archive {archive}, and {session.home.shown} does not have the filter: is that mounted"
            text += "? If so, name the right archive"
        raise ArchiveMissing(f"{session.where}: {text}, or drop the filter to begin anew")


def forget(session: Session) -> None:
    """Remove the note of a filter that is dropped."""
    with contextlib.suppress(*_UNUSABLE):
        _path(session).unlink(missing_ok=True)


def _path(session: Session) -> Path:
    name = f"{_same(session.server)}\n{session.keys.prefix}\n{session.keys.name}"
    return default_data_dir() / "archives" / hashlib.sha256(name.encode()).hexdigest()[:32]


def _same(server: str) -> str:
    """Return one spelling for all of a server's: without the user, and with the IP address for the host's name.

    Several hosts, of a Redis Cluster or of Sentinels, are in order.
    """
    parts = split(server)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    found = sorted(_host(each) for each in hosts if each)
    return f"{','.join(found)}{parts.path}" if found else server


def _host(host: str) -> str:
    """Return an element of a list of hosts with the IP address for the name."""
    parts = urlsplit(f"redis://{host}")
    named = parts.hostname or ""
    try:
        address = str(socket.getaddrinfo(named, None)[0][4][0])
    except OSError:
        address = named
    if address == "::1" or address.startswith("127."):
        address = "127.0.0.1"
    return f"{address}:{parts.port}"


def _read(session: Session) -> str:
    try:
        return _path(session).read_text()
    except _UNUSABLE:
        return ""
