"""A folder as the backend of an archive: blobs and documents are files.

Each file is written under a temporary name, synced, and renamed. ``<root>/<filter>.filter/`` has the registration
``filter.json``, and a folder for each uid. The folder of a uid has the documents ``slice-<shard>-<epoch>.json`` and
``checkpoint-<shard>-<0 or 1>.json``, and the blobs that they name. Something else may be in a file's place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import pwd
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from urifilter_redis.bloom.sizing import size_text
from urifilter_redis.engine.backend import UNREADABLE, Blob, Key
from urifilter_redis.engine.steps import Flow, Work
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.protocol.keys import check_name, is_name

T = TypeVar("T")

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

_DOCUMENT = re.compile(r"(slice|checkpoint)-(\d+)-(\d+)\.json")
_FILTER = ".filter"
_BLOB, _PART = ".blob", ".part"
_UID = re.compile(r"[0-9a-f]{16}")
_BLOB_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-z-]{1,40}")


class FolderBackend:
    """An archive in a folder; see ``Backend`` for the methods.

    Several hosts may share the folder if its file system supports locks, as NFS 4 does.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.url = self.shown = self.root.as_uri()

    def read(self, key: Key) -> Flow[bytes | None]:
        """Read a file. A registration is read from the disk itself, because it shows whether the archive is there."""
        cached = key.kind != "filter"
        return (yield from self._work("read", functools.partial(_text_of, self._document(key), cached=cached)))

    def filters(self) -> Flow[list[str]]:
        """List the folders of filters."""
        return (yield from self._work("filters", self._filters))

    def has_place(self, name: str) -> Flow[bool]:
        """Whether the filter's folder is there; it stays when the filter is dropped."""
        return (yield from self._work("has_place", self._folder(name).is_dir))

    def keys(self, name: str | None = None) -> Flow[list[Key]]:
        """List the files of documents."""
        return (yield from self._work("keys", lambda: sorted(self._keys(name))))

    def swap(self, key: Key, old: bytes | None, new: bytes | None) -> Flow[bool]:
        """Compare the file with ``old`` and replace it, while the filter's folder is locked."""
        return (yield from self._work("swap", self._swap, key, old, new))

    def upload(self, name: str, blob: str) -> _Upload:
        """Begin to write the blob's file."""
        path = self._blob(name, blob)
        return _Upload(self._work, path, functools.partial(self._make_folder, name, path))

    def download(self, name: str, blob: str, offset: int, length: int) -> Flow[bytes]:
        """Read a part of the blob's file."""
        return (yield from self._work("download", _read, self._blob(name, blob), offset, length))

    def delete(self, name: str, blobs: Sequence[str]) -> Flow[None]:
        """Remove the files of blobs, finished or not."""
        paths = [self._blob(name, blob).with_suffix(suffix) for blob in blobs for suffix in (_BLOB, _PART)]
        yield from self._work("delete", _remove_all, paths)

    def blobs(self, name: str | None = None) -> Flow[list[Blob]]:
        """List the files of blobs."""
        return (yield from self._work("blobs", lambda: list(self._blobs(name))))

    def obstacles(self, needed: int) -> Flow[list[tuple[str, str]]]:
        """Check the disk, and the rights to each folder and file."""
        return (yield from self._work("obstacles", lambda: list(self._obstacles(needed))))

    def close(self) -> Flow[None]:
        """Do nothing: a folder has no connections."""
        yield from ()

    def _work(self, name: str, do: Callable[..., T], *arguments: Any) -> Flow[T]:
        try:
            return (yield Work(f"archive {name}", functools.partial(do, *arguments)))  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise ArchiveMissing(f"archive {self.shown}: {error.filename} is missing") from error
        except _Unreadable as error:
            raise ArchiveCorrupt(f"archive {self.shown}: {_advice(error)}") from error
        except OSError as error:
            raise ArchiveError(f"archive {self.shown}: {_advice(error)}") from error

    def _folder(self, name: str) -> Path:
        return self.root / f"{check_name(name)}{_FILTER}"

    def _document(self, key: Key) -> Path:
        folder = self._folder(key.filter)
        if key.kind == "filter":
            return folder / "filter.json"
        if key.uid in {"", ".", ".."} or "/" in key.uid:  # the uid comes from Redis and becomes a path
            raise ArchiveCorrupt(f"archive {self.shown}: {key.uid[:40]!r} is no filter's uid")
        return folder / key.uid / f"{key.kind}-{key.shard}-{key.epoch}.json"

    def _blob(self, name: str, blob: str) -> Path:
        if not _BLOB_NAME.fullmatch(blob):  # the name comes from a document and becomes a path
            raise ArchiveCorrupt(f"archive {self.shown}: {blob[:40]!r} is no blob")
        return self._folder(name) / blob.split("-", maxsplit=1)[0] / f"{blob}{_BLOB}"

    def _filters(self) -> list[str]:
        with os.scandir(self.root) as found:
            folders = (each.name for each in found if not each.is_file(follow_symlinks=False))
            names = (name.removesuffix(_FILTER) for name in folders if name.endswith(_FILTER))
            return sorted(filter(is_name, names))  # other folders do not belong to the archive

    def _files(self, name: str | None) -> Iterator[tuple[str, Path]]:
        """Yield the filter's name and the path of each file in the folders of its uids."""
        for each in self._filters() if name is None else [name]:
            folder = self._folder(each)
            for uid in filter(_UID.fullmatch, _listed(folder)):
                yield from ((each, folder / uid / file) for file in _listed(folder / uid))

    def _keys(self, name: str | None) -> Iterator[Key]:
        for each in self._filters() if name is None else [name]:
            if os.path.lexists(self._document(Key(each))):
                yield Key(each)
        for each, path in self._files(name):
            if found := _DOCUMENT.fullmatch(path.name):
                yield Key(each, found[1], path.parent.name, int(found[2]), int(found[3]))

    def _blobs(self, name: str | None) -> Iterator[Blob]:
        now = time.time()
        for each, path in self._files(name):
            if path.suffix in {_BLOB, _PART}:
                with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile
                    found = path.lstat()
                    age = max(0.0, now - found.st_mtime)
                    yield Blob(each, path.stem, found.st_size, age, path.suffix == _BLOB)

    def _obstacles(self, needed: int) -> Iterator[tuple[str, str]]:
        there = next(each for each in (self.root, *self.root.parents) if each.exists())
        if there != self.root:
            yield "note", "it is not there: the first create makes it; if it was there, is its disk mounted?"
        disk = os.statvfs(there)
        free, files = disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 1  # 1: files have no limit
        readonly = bool(disk.f_flag & os.ST_RDONLY)
        if readonly:
            yield "danger", "its disk is mounted read-only, so checkpoints and rotations fail: mount it for writing"
        elif free < needed or not files:
            text = f"its disk has {size_text(free)} left, and room for {files:,} files"
            yield "danger", f"{text}, so the next checkpoint may fail (it takes {size_text(needed)}): make room"
        paths = [there, *self._paths()] if there == self.root else [there]
        forbidden = [text for path in paths if (text := _refused(path, readonly=readonly))]
        owner = there.stat().st_uid
        if forbidden:
            more = f" and {len(forbidden) - 1:,} more" if len(forbidden) > 1 else ""
            text = f"this user, {_user_name(os.geteuid())}, may not read or write {forbidden[0]}{more}"
            yield "danger", f"{text}: run as the owner, or change that (chown -R, chmod -R u+rwX)"
        elif there == self.root and os.geteuid() == 0 != owner:
            text = f"it belongs to {_user_name(owner)}, and this user is root, whom no mode stops"
            yield "note", f"{text}: run doctor as {_user_name(owner)}, who could not change what root writes there"

    def _paths(self) -> Iterator[Path]:
        """Yield the folders and files of all filters, as far as this user may list them."""
        with contextlib.suppress(OSError):
            for name in self._filters():
                for folder, _, files in os.walk(self._folder(name)):
                    yield Path(folder)
                    yield from (Path(folder, file) for file in files)

    def _make_folder(self, name: str, path: Path) -> None:
        """Make the folder of a file, if the filter is registered.

        Raises:
            ArchiveMissing: the registration is missing, as it is when the archive's disk is not mounted.
        """
        registration = self._document(Key(name))
        if not os.path.lexists(registration):
            text = f"{registration} is missing: if the archive is on a disk of its own, is that mounted?"
            raise ArchiveMissing(f"archive {self.shown}: {text}")
        path.parent.mkdir(exist_ok=True)

    def _swap(self, key: Key, old: bytes | None, new: bytes | None) -> bool:
        path = self._document(key)
        if new is None and not path.parent.is_dir():
            return old is None
        if key.kind == "filter" and old is None and new is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif new is not None:
            self._make_folder(key.filter, path)
        with (self._folder(key.filter) / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                current = _text_of(path)
            except _Unreadable:
                current = UNREADABLE
            if current != old:
                return False
            if new is None:
                _remove(path)
                for uid in filter(_UID.fullmatch, _listed(path.parent) if key.kind == "filter" else ()):
                    with contextlib.suppress(OSError):  # the folder is not empty
                        (path.parent / uid).rmdir()
            else:
                part = path.with_name(f"{path.parent.name}-{path.stem}{_PART}")
                with part.open("wb") as file:
                    file.write(new)
                    _sync(file)
                _put(part, path)
            _sync_folder(path.parent)
        return True


class _Upload:
    """Writes a blob's file under a temporary name; ``finish`` renames it.

    Args:
        work: makes a step of a call, as ``FolderBackend`` does.
        path: the blob's file.
        make_folder: makes the folder of the file.
    """

    def __init__(self, work: Callable[..., Flow[None]], path: Path, make_folder: Callable[[], None]) -> None:
        self._work, self._path, self._make_folder = work, path, make_folder
        self._part = path.with_suffix(_PART)

    def write(self, data: bytes) -> Flow[None]:
        yield from self._work("write", self._write, data)

    def finish(self) -> Flow[None]:
        yield from self._work("finish", self._finish)

    def abandon(self) -> Flow[None]:
        yield from self._work("abandon", _remove_all, [self._part, self._path])

    def _write(self, data: bytes) -> None:
        self._make_folder()
        with self._part.open("ab") as file:  # opened for each write: an abandoned flow closes nothing
            file.write(data)

    def _finish(self) -> None:
        with self._part.open("r+b") as file:
            _sync(file)
        _put(self._part, self._path)
        _sync_folder(self._path.parent)


def _text_of(path: Path, *, cached: bool = True) -> bytes | None:
    """Return the text of a document; None if there is no such file."""
    try:
        return _read(path, cached=cached)
    except FileNotFoundError:
        return None


class _Unreadable(OSError):
    """A file exists and cannot be read, and trying again will not help: it counts as damaged."""


def _read(path: Path, offset: int = 0, length: int = -1, *, cached: bool = True) -> bytes:
    """Read a part of a file; a length of -1: all that follows.

    ``cached=False`` reads from the disk itself, because the page cache may outlive a disk that is away.

    Raises:
        FileNotFoundError: the file does not exist.
        _Unreadable: the file exists and cannot be read.
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
        raise _Unreadable(error.errno, error.strerror, str(path)) from error


def _opened(path: Path) -> BinaryIO:
    """Open a regular file; refuse others, because reading a pipe or a device may block or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return os.fdopen(descriptor, "rb")


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; an empty list if the folder does not exist."""
    try:
        return [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _put(part: Path, path: Path) -> None:
    """Rename a finished file to its name; replace a file or folder of that name."""
    try:
        part.replace(path)
    except IsADirectoryError:
        _remove(path)
        part.replace(path)


def _remove(path: Path) -> None:
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


def _sync(file: BinaryIO) -> None:
    """Make the written bytes durable."""
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_all(paths: Sequence[Path]) -> None:
    for path in paths:
        _remove(path)


def _refused(path: Path, *, readonly: bool) -> str:
    """Return the path, owner and mode of a folder or file if this user lacks a right to it, else an empty text.

    On a file system that is mounted read-only the right to write does not count.
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
    return f"{path} (owner {_user_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):03o})"


def _user_name(uid: int) -> str:
    """Return the name of a user, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _advice(error: OSError) -> str:
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
