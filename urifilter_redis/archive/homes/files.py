"""Read, write and remove the files of an archive in a folder, also where something else is in a file's place."""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "LOCK",
    "Room",
    "Unreadable",
    "advice",
    "listed",
    "put",
    "read",
    "refused",
    "remove",
    "room",
    "sync",
    "sync_folder",
    "user_name",
]

#: The file of a filter's folder that is locked while a document is replaced.
LOCK = ".lock"

#: Errors that say nothing about the file: this process lacks a resource, or the file server is away.
_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EAGAIN", "EINTR", "ESTALE", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH",
        "ENETDOWN", "ENETUNREACH", "ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "ENOTCONN", "ESHUTDOWN", "ENODEV",
    )
)  # fmt: skip


class Unreadable(OSError):
    """A file exists and cannot be read, and trying again will not help: it counts as damaged."""


def read(path: Path, offset: int = 0, length: int = -1, *, cached: bool = True) -> bytes:
    """Read a part of a file.

    Args:
        path: the file.
        offset: the first byte to read.
        length: the number of bytes to read; -1: all.
        cached: False reads from the disk itself, because the page cache may outlive a disk that is away.

    Raises:
        FileNotFoundError: the file does not exist.
        Unreadable: the file exists and cannot be read.
        OSError: the file cannot be read at the moment.
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
    """Open a regular file; refuse others, because reading a pipe or a device may block or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return os.fdopen(descriptor, "rb")


def listed(folder: Path) -> list[str]:
    """Return the names in a folder; an empty list if the folder does not exist."""
    try:
        return [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def put(part: Path, path: Path) -> None:
    """Rename a finished file to its name; replace a file or folder of that name."""
    try:
        part.replace(path)
    except IsADirectoryError:
        remove(path)
        part.replace(path)


def remove(path: Path) -> None:
    """Remove a file, if it exists. An empty folder in its place is removed, any other is renamed to ``*.aside``."""
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:  # a parent is a file, so this file does not exist
        return
    except (IsADirectoryError, PermissionError):
        if not path.is_dir():
            raise
        try:
            path.rmdir()
        except OSError:
            path.rename(path.with_name(f"{path.name}.{secrets.token_hex(4)}.aside"))


def sync(file: BinaryIO) -> None:
    """Make the written bytes durable."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Room(NamedTuple):
    """The room that is left on the disk of a folder.

    Attributes:
        free: bytes.
        files: the number of files; 1 if the file system has no limit.
        readonly: whether it is mounted so.
    """

    free: int
    files: int
    readonly: bool


def room(folder: Path) -> Room:
    """Return the room on the disk of a folder."""
    found = os.statvfs(folder)
    files = found.f_favail if found.f_files else 1
    return Room(found.f_bavail * found.f_frsize, files, bool(found.f_flag & os.ST_RDONLY))


def refused(path: Path, *, readonly: bool) -> str:
    """Return a text if this user lacks a right to a folder or file of an archive: its path, its owner and its mode.

    ``readonly``: the file system is mounted so, whatever the rights are.
    """
    try:
        found = path.stat()
    except OSError as error:
        return f"{path} ({error.strerror})"
    wanted = os.R_OK
    if stat.S_ISDIR(found.st_mode):
        wanted |= os.X_OK
    if not readonly and (stat.S_ISDIR(found.st_mode) or path.name == LOCK):
        wanted |= os.W_OK
    if os.access(path, wanted):
        return ""
    return f"{path} (owner {user_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):03o})"


def user_name(uid: int) -> str:
    """Return the name of a user, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def advice(error: OSError) -> str:
    """Return a text that names the error and says what to do about it."""
    text = f"{error.filename or ''} {error.strerror or error}".strip()
    known = {
        errno.ENOSPC: "its disk is full: make room; nothing that was there is lost",
        errno.EDQUOT: "the quota is used up: make room; nothing that was there is lost",
        errno.EACCES: "this user may not read or write it",
        errno.EROFS: "it is mounted read-only",
    }
    found = known.get(error.errno or 0)
    return f"{found} ({text})" if found else text
