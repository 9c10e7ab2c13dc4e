"""The home of an archive outside Redis, as a Protocol; the folder and MongoDB are two (``archive.homes``).

A home keeps blobs, which are written once under names of their own, and small documents, the pointers, which say
which blobs count; a document is replaced atomically and only by who knows what it replaces. So a crash leaves at
most blobs that nothing points to, and whoever was overtaken changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from urifilter_redis.errors import ArchiveCorrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from urifilter_redis.engine.steps import Flow

__all__ = ["UNREADABLE", "Blob", "Home", "Key", "Upload", "read_to_replace"]

#: What ``swap`` takes for a document that is there and cannot be read, so that it can be replaced or removed.
UNREADABLE = b""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What a document is called.

    Attributes:
        filter: name of the filter.
        kind: ``filter`` (what it is), ``slice`` (a closed one) or ``checkpoint``.
        uid: of the filter; empty for kind ``filter``, so that a name stands for one filter.
        shard: which; 0 for kind ``filter``.
        epoch: slice: in which it was today; checkpoint: 0 and 1 in turn, so that the one before is there still.
    """

    filter: str
    kind: str = "filter"
    uid: str = ""
    shard: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """What a home knows of a blob without reading it.

    Attributes:
        filter: name of the filter; id: of the blob.
        size: bytes.
        age: seconds since it was written, or was last written to.
        whole: its upload was finished.
    """

    filter: str
    id: str
    size: int
    age: float
    whole: bool


class Upload(Protocol):
    """A blob on its way; the methods are flows."""

    def write(self, data: bytes) -> Flow[None]:
        """Append."""
        ...

    def finish(self) -> Flow[None]:
        """Make it durable, and be there."""
        ...

    def abandon(self) -> Flow[None]:
        """Remove what was written, also of a finished one."""
        ...


class Home(Protocol):
    """Where blobs and documents are; the methods are flows, and raise ArchiveError for whatever fails.

    The name of a filter that cannot be one is a ValueError, before anything is looked at; what is there under such a
    name is somebody else's, and not listed.

    Attributes:
        url: the address.
        shown: the same without user and password.
    """

    url: str
    shown: str

    def read(self, key: Key) -> Flow[bytes | None]:
        """Return a document; None if there is none.

        Raises:
            ArchiveCorrupt: it is there and cannot be read; see ``UNREADABLE``.
        """
        ...

    def filters(self) -> Flow[list[str]]:
        """Return the names of which there is anything, sorted; they need not be registered."""
        ...

    def keys(self, name: str | None = None) -> Flow[list[Key]]:
        """Return the keys of all documents, or of those of one filter, sorted."""
        ...

    def swap(self, key: Key, old: bytes | None, new: bytes | None) -> Flow[bool]:
        """Replace a document that is ``old`` by ``new``; None: there is none. False: it is not ``old``.

        A registration makes the filter's place; in a folder nothing else is written where there is none.

        Raises:
            ArchiveMissing: the filter's place is not there.
        """
        ...

    def upload(self, name: str, blob: str) -> Upload:
        """Begin a blob of a filter; like ``swap``, in a folder only where the filter is registered."""
        ...

    def download(self, name: str, blob: str, offset: int, length: int) -> Flow[bytes]:
        """Return bytes of a blob; fewer where it ends.

        Raises:
            ArchiveMissing: there is no such blob.
            ArchiveCorrupt: it is there and cannot be read.
        """
        ...

    def delete(self, name: str, blobs: Sequence[str]) -> Flow[None]:
        """Remove blobs, finished or not; there may be none."""
        ...

    def blobs(self, name: str | None = None) -> Flow[list[Blob]]:
        """Return all blobs, or those of one filter, uploads under way too."""
        ...

    def close(self) -> Flow[None]:
        """Close connections."""
        ...


def read_to_replace(home: Home, key: Key) -> Flow[tuple[bytes | None, str]]:
    """Return a document as ``swap`` wants it, and why it cannot be read, if so."""
    try:
        return (yield from home.read(key)), ""
    except ArchiveCorrupt as error:
        return UNREADABLE, str(error)
