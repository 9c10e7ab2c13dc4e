"""Write and read the packed bytes of an archive.

A content (a bitmap or a list of records) is written in packed pieces into one blob of a backend. It is read back before
a document names it. Each later read checks the SHA-256 of each piece.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from urifilter_redis.engine.backend import Backend, Upload
from urifilter_redis.engine.queries import chunked
from urifilter_redis.engine.steps import Flow, Work
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError
from urifilter_redis.storage.documents import PIECE, Checkpoint, Content, Piece, piece_spans
from urifilter_redis.storage.packing import pack
from urifilter_redis.storage.records import KINDS

#: Pieces that are read, or written, in one step: 2 MiB unpacked, and at most as much packed.
PIECES_AT_ONCE = 8

#: Seconds that an upload may take until a document names it. A slower upload gives up, because ``prune`` may have
#: removed its blob as a leftover.
UPLOAD_LIFE = 1800.0


class Writer:
    """Writes one content into a new blob of a backend.

    Attributes:
        blob: the name of the blob.
    """

    def __init__(self, backend: Backend, name: str, uid: str) -> None:
        self.blob = f"{uid}-{secrets.token_hex(8)}"
        self._backend, self._name = backend, name
        self._upload: Upload | None = None
        self._pieces: list[Piece] = []
        self._rest = b""  # the appended bytes that do not fill a piece yet
        self._began = time.time()

    def write(self, pieces: Sequence[bytes]) -> Flow[None]:
        """Pack pieces and append them to the blob."""
        if not pieces:
            return
        if self._upload is None:
            self._upload = self._backend.upload(self._name, self.blob)
        packed = yield Work("pack", lambda: list(map(pack, pieces)))
        self._pieces += map(Piece.of, pieces, packed)
        yield from self._upload.write(b"".join(packed))

    def append(self, data: bytes) -> Flow[None]:
        """Append bytes, cut into pieces."""
        data = self._rest + data
        whole = len(data) // PIECE * PIECE
        self._rest = data[whole:]
        for pieces in _cut(data[:whole]):
            yield from self.write(pieces)

    def finish(self) -> Flow[Content]:
        """Make the blob durable, read it back, and return the content.

        Raises:
            ArchiveCorrupt: the bytes that were read differ from those that were written.
        """
        for pieces in _cut(self._rest):
            yield from self.write(pieces)
        if self._upload is None:
            return Content("", [])
        yield from self._upload.finish()
        content = Content(self.blob, self._pieces)
        yield from verify(self._backend, self._name, content)
        return content

    def check_age(self) -> None:
        """Check that the upload is too young for ``prune`` to have removed it.

        Raises:
            ArchiveError: the upload began more than ``UPLOAD_LIFE`` seconds ago.
        """
        if not 0 <= time.time() - self._began < UPLOAD_LIFE:
            raise ArchiveError(f"archive {self._backend.shown}: an upload took over {UPLOAD_LIFE:.0f} s: begin anew")

    def abandon(self) -> Flow[None]:
        """Remove the blob."""
        if self._upload is not None:
            yield from self._upload.abandon()


def _cut(data: bytes) -> Iterator[Sequence[bytes]]:
    """Cut bytes into pieces; yield lists of at most ``PIECES_AT_ONCE`` pieces."""
    return chunked([data[at : at + length] for at, length in piece_spans(len(data))], PIECES_AT_ONCE)


def read_pieces(backend: Backend, name: str, content: Content, first: int, last: int) -> Flow[list[bytes]]:
    """Return the pieces ``first`` to ``last - 1`` of a content, unpacked and checked.

    Raises:
        ArchiveMissing: the backend does not have the blob.
        ArchiveCorrupt: the blob is damaged.
    """
    spans = content.spans()[first:last]
    if not spans:
        return []
    start, end = spans[0][0], sum(spans[-1])
    data = yield from backend.download(name, content.blob, start, end - start)
    packed = [data[offset - start : offset - start + length] for offset, length in spans]
    try:
        return (yield Work("unpack", lambda: list(map(Piece.unpack, content.pieces[first:last], packed))))  # type: ignore[no-any-return]
    except ArchiveCorrupt as error:
        raise ArchiveCorrupt(f"blob {content.blob}: {error}") from error


def read_records(
    backend: Backend, name: str, checkpoint: Checkpoint, kind: str, use: Callable[[list[Any]], Flow[None]]
) -> Flow[None]:
    """Read the records of a checkpoint, some at a time.

    Args:
        backend: the backend that keeps the content.
        name: the filter's name.
        checkpoint: the checkpoint.
        kind: one of ``KINDS``.
        use: a flow to run with each list of records.

    Raises:
        ArchiveMissing: the backend does not have the blob.
        ArchiveCorrupt: the blob is damaged, or ends within a record.
    """
    content, rest = checkpoint.records[kind], b""
    for first in range(0, len(content.pieces), PIECES_AT_ONCE):
        pieces = yield from read_pieces(backend, name, content, first, first + PIECES_AT_ONCE)
        try:
            records, rest = KINDS[kind].split(rest + b"".join(pieces))
        except ArchiveCorrupt as error:
            raise ArchiveCorrupt(f"blob {content.blob}: {error}") from error
        yield from use(records)
    if rest:
        raise ArchiveCorrupt(f"blob {content.blob}: it ends within a record")


def nothing(*_: object) -> Flow[None]:
    """Do nothing."""
    yield from ()


def verify(backend: Backend, name: str, content: Content, between: Callable[[], Flow[None]] = nothing) -> Flow[None]:
    """Read a whole content and check it; run the flow ``between`` after each step. Errors as ``read_pieces``."""
    for first in range(0, len(content.pieces), PIECES_AT_ONCE):
        yield from read_pieces(backend, name, content, first, first + PIECES_AT_ONCE)
        yield from between()


def as_numbers(pieces: Sequence[bytes]) -> list[int]:
    """Return each piece of a bitmap as an integer, so that ``|`` merges two pieces."""
    return [int.from_bytes(piece, "little") for piece in pieces]
