"""A folder as the home of an archive: blobs and documents are files, made under a temporary name, synced, renamed.

``<root>/<filter>.filter/`` has ``filter.json`` and, by uid, a folder of ``slice-<shard>-<epoch>.json``,
``checkpoint-<shard>-<0 or 1>.json`` and the blobs that these name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from urifilter_redis.archive.home import Blob, Key
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.keys import check_name, is_name
from urifilter_redis.steps import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.steps import Flow

__all__ = ["FolderHome"]

T = TypeVar("T")

_DOCUMENT = re.compile(r"(slice|checkpoint)-(\d+)-(\d+)\.json")
_FILTER = ".filter"
_BLOB, _PART = ".blob", ".part"
_BLOB_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-z-]{1,40}")


class FolderHome:
    """See ``Home``; several hosts may share it if their file system locks (NFS 4 does)."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.shown = self.root.as_uri()

    def read(self, key: Key) -> Flow[bytes | None]:
        """Read a file."""
        return (yield from self._work("read", _read, self._document(key)))

    def keys(self, name: str | None = None) -> Flow[list[Key]]:
        """List files."""
        return (yield from self._work("keys", lambda: sorted(self._keys(name))))

    def swap(self, key: Key, old: bytes | None, new: bytes | None) -> Flow[bool]:
        """Compare and rename, under a lock of the filter's folder."""
        return (yield from self._work("swap", self._swap, key.filter, self._document(key), old, new))

    def upload(self, name: str, blob: str) -> _Upload:
        """Write a file."""
        return _Upload(self, self._blob(name, blob))

    def download(self, name: str, blob: str, offset: int, length: int) -> Flow[bytes]:
        """Read a part of a file."""
        return (yield from self._work("download", _pread, self._blob(name, blob), offset, length))

    def delete(self, name: str, blobs: Sequence[str]) -> Flow[None]:
        """Unlink files."""
        paths = [self._blob(name, blob).with_suffix(suffix) for blob in blobs for suffix in (_BLOB, _PART)]
        yield from self._work("delete", _unlink, paths)

    def blobs(self, name: str | None = None) -> Flow[list[Blob]]:
        """List files."""
        return (yield from self._work("blobs", lambda: list(self._blobs(name))))

    def close(self) -> Flow[None]:
        """There is nothing to close."""
        yield from ()

    def _work(self, name: str, do: Callable[..., T], *arguments: Any) -> Flow[T]:
        try:
            return (yield Work(f"archive {name}", functools.partial(do, *arguments)))  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise ArchiveMissing(f"archive {self.shown}: {error.filename} is missing") from error
        except OSError as error:
            raise ArchiveError(f"archive {self.shown}: {_advice(error)}") from error

    def _folder(self, name: str) -> Path:
        return self.root / f"{check_name(name)}{_FILTER}"

    def _document(self, key: Key) -> Path:
        folder = self._folder(key.filter)
        if key.kind == "filter":
            return folder / "filter.json"
        if key.uid in {"", ".", ".."} or "/" in key.uid:  # it comes from Redis
            raise ArchiveCorrupt(f"archive {self.shown}: {key.uid[:40]!r} is no filter's uid")
        return folder / key.uid / f"{key.kind}-{key.shard}-{key.epoch}.json"

    def _blob(self, name: str, blob: str) -> Path:
        if not _BLOB_NAME.fullmatch(blob):  # it comes from a document, and is to become a path
            raise ArchiveCorrupt(f"archive {self.shown}: {blob[:40]!r} is no blob")
        return self._folder(name) / blob.split("-", maxsplit=1)[0] / f"{blob}{_BLOB}"

    def _names(self, name: str | None) -> list[str]:
        if name is not None:
            return [name] if self._folder(name).is_dir() else []
        if not self.root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "", str(self.root))
        found = [each.name.removesuffix(_FILTER) for each in self.root.glob(f"*{_FILTER}") if each.is_dir()]
        return list(filter(is_name, found))  # others are not ours

    def _keys(self, name: str | None) -> Iterator[Key]:
        for each in self._names(name):
            if (self._folder(each) / "filter.json").exists():
                yield Key(each)
            for path in self._folder(each).glob("*/*.json"):
                if found := _DOCUMENT.fullmatch(path.name):
                    yield Key(each, found[1], path.parent.name, int(found[2]), int(found[3]))

    def _blobs(self, name: str | None) -> Iterator[Blob]:
        now = time.time()
        for each in self._names(name):
            for path in self._folder(each).glob("*/*"):
                if path.suffix in {_BLOB, _PART}:
                    with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile
                        found = path.stat()
                        age = max(0.0, now - found.st_mtime)
                        yield Blob(each, path.stem, found.st_size, age, path.suffix == _BLOB)

    def _swap(self, name: str, path: Path, old: bytes | None, new: bytes | None) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._folder(name) / ".lock"):
            if _read(path) != old:
                return False
            if new is None:
                path.unlink(missing_ok=True)
                _remove_empty(path.parent)
            else:
                part = path.with_name(f"{path.parent.name}-{path.stem}{_PART}")
                with part.open("wb") as file:
                    file.write(new)
                    _sync(file)
                part.replace(path)
            _sync_folder(path.parent)
        return True


class _Upload:
    """A file that is written; it gets its name when it is finished."""

    def __init__(self, home: FolderHome, path: Path) -> None:
        self._home, self._path = home, path
        self._part = path.with_suffix(_PART)

    def write(self, data: bytes) -> Flow[None]:
        """Append."""
        yield from self._home._work("write", self._write, data)  # noqa: SLF001 - parts of one home

    def finish(self) -> Flow[None]:
        """Sync and rename."""
        yield from self._home._work("finish", self._finish)  # noqa: SLF001 - likewise

    def abandon(self) -> Flow[None]:
        """Unlink."""
        yield from self._home._work("abandon", self._abandon)  # noqa: SLF001 - likewise

    def _write(self, data: bytes) -> None:
        self._part.parent.mkdir(parents=True, exist_ok=True)
        with self._part.open("ab") as file:  # anew each time: a flow may end without a word
            file.write(data)

    def _finish(self) -> None:
        with self._part.open("ab") as file:
            _sync(file)
        self._part.replace(self._path)
        _sync_folder(self._path.parent)

    def _abandon(self) -> None:
        _unlink([self._part, self._path])


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _pread(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _unlink(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    """Remove the folders in a filter's folder of which nothing is left."""
    for each in folder.glob("*/"):
        with contextlib.suppress(OSError):  # something is left
            each.rmdir()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _advice(error: OSError) -> str:
    text = f"{error.filename or ''} {error.strerror or error}".strip()
    known = {
        errno.ENOSPC: "its disk is full: make room; nothing that was there is lost",
        errno.EDQUOT: "the quota is used up: make room; nothing that was there is lost",
        errno.EACCES: "this user may not read or write it",
        errno.EROFS: "it is mounted read-only",
    }
    advice = known.get(error.errno or 0)
    return f"{advice} ({text})" if advice else text
