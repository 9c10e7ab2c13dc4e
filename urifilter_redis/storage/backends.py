"""Open the backend of an archive by its URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from urifilter_redis.checks import check_text

if TYPE_CHECKING:
    from urifilter_redis.engine.backend import Backend

#: The environment variable with the address of the archive.
ARCHIVE_VARIABLE = "URIFILTER_ARCHIVE"


def named_backend(archive: str | None, *, asynchronous: bool = False) -> Backend | None:
    """Return the backend of an archive; None if there is no address, or it is empty.

    Args:
        archive: the address; None: the address in the environment variable ``URIFILTER_ARCHIVE``.
        asynchronous: whether the asyncio driver runs the backend's flows.

    Example:
        >>> named_backend("file:///srv/uris").shown
        'file:///srv/uris'

    Raises:
        ValueError: the address is neither ``file:///…`` nor ``mongodb://…/database``.
    """
    check_text("archive", archive, optional=True)
    url = os.environ.get(ARCHIVE_VARIABLE) if archive is None else archive
    return open_backend(url, asynchronous=asynchronous) if url else None


def open_backend(url: str, *, asynchronous: bool = False) -> Backend:
    """Return the backend at an address, without connecting or reading.

    Example:
        >>> open_backend("file:///srv/uris/").shown
        'file:///srv/uris'

    Raises:
        ValueError: the address is neither ``file:///…`` nor ``mongodb://…/database``.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and len(parts.path) > 1:
        from urifilter_redis.storage.folder import FolderBackend  # noqa: PLC0415 - needs file locks

        return FolderBackend(os.path.normpath(unquote(parts.path)))
    if parts.scheme in {"mongodb", "mongodb+srv"}:
        from urifilter_redis.storage.mongodb import MongoBackend  # noqa: PLC0415 - pymongo takes long to load

        return MongoBackend(url, asynchronous=asynchronous)
    form = "an archive is file:///a/folder or mongodb://host/database"
    raise ValueError(f"{form}, and not one of scheme {parts.scheme or '(none)'!r}")
