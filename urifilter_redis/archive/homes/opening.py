"""The home that an address names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from urifilter_redis.engine.home import Home

__all__ = ["ARCHIVE_VARIABLE", "named_home", "open_home"]

#: The environment's address of the archive.
ARCHIVE_VARIABLE = "URIFILTER_ARCHIVE"

_FORM = "an archive is file:///a/folder or mongodb://host/database"


def named_home(archive: str | None, *, asynchronous: bool = False) -> Home | None:
    """Return the home of the archive that was named, else of the environment's, if any."""
    url = os.environ.get(ARCHIVE_VARIABLE) if archive is None else archive
    return open_home(url, asynchronous=asynchronous) if url else None


def open_home(url: str, *, asynchronous: bool = False) -> Home:
    """Return the home that a URL names; nothing is connected or read yet.

    Raises:
        ValueError: it is neither ``file:///…`` nor ``mongodb://…/database``.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and len(parts.path) > 1:
        from urifilter_redis.archive.homes.folder import FolderHome  # noqa: PLC0415 - needs file locks

        return FolderHome(os.path.normpath(unquote(parts.path)))
    if parts.scheme in {"mongodb", "mongodb+srv"}:
        from urifilter_redis.archive.homes.mongodb import MongoHome  # noqa: PLC0415 - pymongo takes long to load

        return MongoHome(url, asynchronous=asynchronous)
    raise ValueError(f"{_FORM}, and not one of scheme {parts.scheme or '(none)'!r}")
