"""The backend of an archive outside Redis, as a Protocol; ``storage.backends`` opens two: the folder and MongoDB.

A backend keeps blobs and documents. A blob is written once, under its own name. A document is small and names the blobs
that count. It is replaced atomically, and only by a process that knows its present content. So a crash leaves at most
blobs that no document names, and a process that was overtaken changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt

#: Stands for a document that is there and cannot be read: ``swap`` takes it as ``old`` to replace or remove one.
UNREADABLE = b""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The name of a document.

    Attributes:
        filter: the filter's name.
        kind: ``filter`` (a registration), ``slice`` (the manifest of a closed slice) or ``checkpoint``.
        uid: the filter's uid; empty for kind ``filter``, so that a name has one registration.
        shard: the number of the shard; 0 for kind ``filter``.
        epoch: for kind ``slice`` the epoch in which the slice was today; for kind ``checkpoint`` 0 and 1 in turn, so
            that the previous checkpoint stays until the next is written; 0 for kind ``filter``.
    """

    filter: str
    kind: str = "filter"
    uid: str = ""
    shard: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob as a backend lists it, without its content.

    Attributes:
        filter: the filter's name.
        id: the blob's own name.
        size: in bytes.
        age: the seconds since the last write to the blob.
        whole: whether its upload was finished.
    """

    filter: str
    id: str
    size: int
    age: float
    whole: bool


class Upload(Protocol):
    """The upload of a blob; the methods are flows."""

    def write(self, data: bytes) -> Flow[None]:
        """Append bytes to the blob."""
        ...

    def finish(self) -> Flow[None]:
        """Make the blob durable and whole."""
        ...

    def abandon(self) -> Flow[None]:
        """Remove the blob, whether it is finished or not."""
        ...


class Backend(Protocol):
    """A keeper of blobs and documents. The methods are flows, and raise ArchiveError for every failure of the backend.

    A method that gets an impossible filter name raises ValueError before it does anything. The backend lists nothing
    under such a name, because it belongs to no filter.

    Attributes:
        url: the backend's address.
        shown: the same without user and password.
    """

    url: str
    shown: str

    def read(self, key: Key) -> Flow[bytes | None]:
        """Return the content of a document; None if there is no document of this key.

        Raises:
            ArchiveCorrupt: the document is there and cannot be read; see ``UNREADABLE``.
        """
        ...

    def filters(self) -> Flow[list[str]]:
        """Return the names of all filters that have a blob or document, sorted; some may have no registration."""
        ...

    def has_place(self, name: str) -> Flow[bool]:
        """Whether the backend has, or had, a filter of this name; False if it is away and looks empty.

        A drop leaves the place. A database that answers is there, and has a place for every filter.
        """
        ...

    def keys(self, name: str | None = None) -> Flow[list[Key]]:
        """Return the keys of all documents, or of those of one filter, sorted."""
        ...

    def swap(self, key: Key, old: bytes | None, new: bytes | None) -> Flow[bool]:
        """Replace the document ``old`` by ``new``, if its content is still ``old``; return whether it was.

        None as ``old`` means that there is no document; None as ``new`` removes it. The first registration makes the
        filter's place in the backend. A folder takes no other document before that.

        Raises:
            ArchiveMissing: the filter has no place in the backend.
        """
        ...

    def upload(self, name: str, blob: str) -> Upload:
        """Begin the upload of a blob of a filter; like ``swap``, a folder takes it only if the filter has a place."""
        ...

    def download(self, name: str, blob: str, offset: int, length: int) -> Flow[bytes]:
        """Return ``length`` bytes of a blob from ``offset``; fewer if the blob ends before.

        Raises:
            ArchiveMissing: there is no such blob.
            ArchiveCorrupt: the blob is there and cannot be read.
        """
        ...

    def delete(self, name: str, blobs: Sequence[str]) -> Flow[None]:
        """Remove blobs, finished or not; a blob that is not there is no error."""
        ...

    def blobs(self, name: str | None = None) -> Flow[list[Blob]]:
        """Return all blobs, or those of one filter, unfinished uploads included."""
        ...

    def obstacles(self, needed: int) -> Flow[list[tuple[str, str]]]:
        """Return what keeps this user from using the backend, without writing: a database says so when it is asked.

        Each finding has a level of the doctor, ``note`` or ``danger``, and a text. There must be room for ``needed``
        bytes.
        """
        ...

    def close(self) -> Flow[None]:
        """Close connections."""
        ...


def read_to_replace(backend: Backend, key: Key) -> Flow[tuple[bytes | None, str]]:
    """Return a document's content to pass to ``swap`` as ``old``, and the reason if it cannot be read, else ""."""
    try:
        return (yield from backend.read(key)), ""
    except ArchiveCorrupt as error:
        return UNREADABLE, str(error)
