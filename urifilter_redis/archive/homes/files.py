"""Files of an archive in a folder: read as what may be damaged, and removed whatever has come in their place."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Unreadable", "advice", "listed", "put", "read", "remove", "sync", "sync_folder"]

#: What says nothing of a file: this process has no more of something, or the server that keeps the disk is away.
_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EAGAIN", "EINTR", "ESTALE", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH",
        "ENETDOWN", "ENETUNREACH", "ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "ENOTCONN", "ESHUTDOWN", "ENODEV",
    )
)  # fmt: skip


class Unreadable(OSError):
    """Something is there and cannot be read, for a reason of its own: it counts as damaged."""


def read(path: Path, offset: int = 0, length: int = -1, *, cached: bool = True) -> bytes:
    """Read a part of a file; not ``cached``: from the disk, which may be away though memory still has the file.

    Raises:
        FileNotFoundError: there is none.
        Unreadable: it is there and cannot be read.
        OSError: nothing can be said of it at the moment.
    """
    try:
        with _opened(path) as file:
            if not cached and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(offset)
            return file.read(length)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise Unreadable(error.errno, error.strerror, str(path)) from error


def _opened(path: Path) -> BinaryIO:
    """Open a regular file; anything else might keep the reader waiting, or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return os.fdopen(descriptor, "rb")


def listed(folder: Path) -> list[str]:
    """Return the names in a folder; of none there are none."""
    try:
        return [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def put(part: Path, path: Path) -> None:
    """Give a finished file its name, in place of what has it."""
    try:
        part.replace(path)
    except IsADirectoryError:
        remove(path)
        part.replace(path)


def remove(path: Path) -> None:
    """Remove a file, if it is there; a folder in its place is not ours, and is put aside unless it is empty."""
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:  # nor can it be there
        return
    except (IsADirectoryError, PermissionError):
        if not path.is_dir():
            raise
        try:
            path.rmdir()
        except OSError:
            path.rename(path.with_name(f"{path.name}.{secrets.token_hex(4)}.aside"))


def sync(file: BinaryIO) -> None:
    """Make what was written durable."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def advice(error: OSError) -> str:
    """Say what is wrong, and what to do about it."""
    text = f"{error.filename or ''} {error.strerror or error}".strip()
    known = {
        errno.ENOSPC: "its disk is full: make room; nothing that was there is lost",
        errno.EDQUOT: "the quota is used up: make room; nothing that was there is lost",
        errno.EACCES: "this user may not read or write it",
        errno.EROFS: "it is mounted read-only",
    }
    found = known.get(error.errno or 0)
    return f"{found} ({text})" if found else text
