"""A folder as the home of an archive: blobs and documents are files.

Each file is written under a temporary name, synced, and renamed. ``<root>/<filter>.filter/`` has the registration
``filter.json``, and a folder for each uid. The folder of a uid has the documents ``slice-<shard>-<epoch>.json`` and
``checkpoint-<shard>-<0 or 1>.json``, and the blobs that they name.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.archive.homes.files import (
    LOCK,
    Unreadable,
    advice,
    listed,
    put,
    read,
    refused,
    remove,
    room,
    sync,
    sync_folder,
    user_name,
)
from urifilter_redis.bloom.sizing import size_text
from urifilter_redis.engine.backend import UNREADABLE, Blob, Key
from urifilter_redis.engine.steps import Work
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.protocol.keys import check_name, is_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from urifilter_redis.engine.steps import Flow

__all__ = ["FolderHome"]

T = TypeVar("T")

_DOCUMENT = re.compile(r"(slice|checkpoint)-(\d+)-(\d+)\.json")
_FILTER = ".filter"
_BLOB, _PART = ".blob", ".part"
_UID = re.compile(r"[0-9a-f]{16}")
_BLOB_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-z-]{1,40}")


class FolderHome:
    """An archive in a folder; see ``Home`` for the methods.

    Several hosts may share the folder if its file system supports locks, as NFS 4 does.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.url = self.shown = self.root.as_uri()

    def read(self, key: Key) -> Flow[bytes | None]:
        """Read a file. A registration is read from the disk itself, because it shows whether the archive is there."""
        return (yield from self._work("read", _read, self._document(key), key.kind != "filter"))

    def filters(self) -> Flow[list[str]]:
        """List the folders of filters."""
        return (yield from self._work("filters", self._filters))

    def has_place(self, name: str) -> Flow[bool]:
        """Look for the filter's folder, which stays when the filter is dropped."""
        return (yield from self._work("has_place", self._folder(name).is_dir))

    def keys(self, name: str | None = None) -> Flow[list[Key]]:
        """List the files of documents."""
        return (yield from self._work("keys", lambda: sorted(self._keys(name))))

    def swap(self, key: Key, old: bytes | None, new: bytes | None) -> Flow[bool]:
        """Compare the file with ``old`` and replace it, while the filter's folder is locked."""
        return (yield from self._work("swap", self._swap, key, old, new))

    def upload(self, name: str, blob: str) -> _Upload:
        """Begin to write the blob's file."""
        return _Upload(self, name, self._blob(name, blob))

    def download(self, name: str, blob: str, offset: int, length: int) -> Flow[bytes]:
        """Read a part of the blob's file."""
        return (yield from self._work("download", read, self._blob(name, blob), offset, length))

    def delete(self, name: str, blobs: Sequence[str]) -> Flow[None]:
        """Remove the files of blobs, finished or not."""
        paths = [self._blob(name, blob).with_suffix(suffix) for blob in blobs for suffix in (_BLOB, _PART)]
        yield from self._work("delete", _remove_all, paths)

    def blobs(self, name: str | None = None) -> Flow[list[Blob]]:
        """List the files of blobs."""
        return (yield from self._work("blobs", lambda: list(self._blobs(name))))

    def obstacles(self, needed: int) -> Flow[list[tuple[str, str]]]:
        """Look at the disk, and at the rights to each folder and file."""
        return (yield from self._work("obstacles", lambda: list(self._obstacles(needed))))

    def close(self) -> Flow[None]:
        """Do nothing: a folder has no connections."""
        yield from ()

    def _work(self, name: str, do: Callable[..., T], *arguments: Any) -> Flow[T]:
        try:
            return (yield Work(f"archive {name}", functools.partial(do, *arguments)))  # type: ignore[no-any-return]
        except FileNotFoundError as error:
            raise ArchiveMissing(f"archive {self.shown}: {error.filename} is missing") from error
        except Unreadable as error:
            raise ArchiveCorrupt(f"archive {self.shown}: {advice(error)}") from error
        except OSError as error:
            raise ArchiveError(f"archive {self.shown}: {advice(error)}") from error

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
            for uid in filter(_UID.fullmatch, listed(folder)):
                yield from ((each, folder / uid / file) for file in listed(folder / uid))

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
        disk = room(there)
        if disk.readonly:
            yield "danger", "its disk is mounted read-only, so checkpoints and rotations fail: mount it for writing"
        elif disk.free < needed or not disk.files:
            text = f"its disk has {size_text(disk.free)} left, and room for {disk.files:,} files"
            yield "danger", f"{text}, so the next checkpoint may fail (it takes {size_text(needed)}): make room"
        paths = [there, *self._paths()] if there == self.root else [there]
        forbidden = [text for path in paths if (text := refused(path, readonly=disk.readonly))]
        owner = there.stat().st_uid
        if forbidden:
            more = f" and {len(forbidden) - 1:,} more" if len(forbidden) > 1 else ""
            text = f"this user, {user_name(os.geteuid())}, may not read or write {forbidden[0]}{more}"
            yield "danger", f"{text}: run as the owner, or change that (chown -R, chmod -R u+rwX)"
        elif there == self.root and os.geteuid() == 0 != owner:
            text = f"it belongs to {user_name(owner)}, and this user is root, whom no mode stops"
            yield "note", f"{text}: run doctor as {user_name(owner)}, who could not change what root writes there"

    def _paths(self) -> Iterator[Path]:
        """Yield the folders and files of all filters, as far as this user may list them."""
        with contextlib.suppress(OSError):
            for name in self._filters():
                for folder, _, files in os.walk(self._folder(name)):
                    yield Path(folder)
                    yield from (Path(folder, file) for file in files)

    def make_folder(self, name: str, path: Path) -> None:
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
            self.make_folder(key.filter, path)
        with _locked(self._folder(key.filter) / LOCK):
            if _current(path) != old:
                return False
            if new is None:
                remove(path)
                if key.kind == "filter":
                    _remove_empty(path.parent)
            else:
                part = path.with_name(f"{path.parent.name}-{path.stem}{_PART}")
                with part.open("wb") as file:
                    file.write(new)
                    sync(file)
                put(part, path)
            sync_folder(path.parent)
        return True


class _Upload:
    """Writes a blob's file under a temporary name; ``finish`` renames it."""

    def __init__(self, home: FolderHome, name: str, path: Path) -> None:
        self._home, self._name, self._path = home, name, path
        self._part = path.with_suffix(_PART)

    def write(self, data: bytes) -> Flow[None]:
        """Append bytes."""
        yield from self._home._work("write", self._write, data)  # noqa: SLF001 - parts of one home

    def finish(self) -> Flow[None]:
        """Sync the file and rename it."""
        yield from self._home._work("finish", self._finish)  # noqa: SLF001 - likewise

    def abandon(self) -> Flow[None]:
        """Remove the file."""
        yield from self._home._work("abandon", self._abandon)  # noqa: SLF001 - likewise

    def _write(self, data: bytes) -> None:
        self._home.make_folder(self._name, self._part)
        with self._part.open("ab") as file:  # opened for each write: an abandoned flow closes nothing
            file.write(data)

    def _finish(self) -> None:
        with self._part.open("r+b") as file:
            sync(file)
        put(self._part, self._path)
        sync_folder(self._path.parent)

    def _abandon(self) -> None:
        _remove_all([self._part, self._path])


def _read(path: Path, cached: bool = True) -> bytes | None:  # noqa: FBT001, FBT002 - as ``read``
    try:
        return read(path, cached=cached)
    except FileNotFoundError:
        return None


def _current(path: Path) -> bytes | None:
    try:
        return _read(path)
    except Unreadable:
        return UNREADABLE


def _remove_all(paths: Sequence[Path]) -> None:
    for path in paths:
        remove(path)


def _remove_empty(folder: Path) -> None:
    """Remove the empty folders of uids from a filter's folder."""
    for uid in filter(_UID.fullmatch, listed(folder)):
        with contextlib.suppress(OSError):  # the folder is not empty
            (folder / uid).rmdir()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
