"""A filter in one file that describes itself: its configuration and the last good checkpoint of every shard.

The file holds, in this order: the line ``urifilter-archive 1``; a line with the length of the header in bytes; the
header, a document as ``storage/documents.py`` describes it; and the blobs, in the order in which the header
lists them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from urifilter_redis.bloom.digest import blocked_offsets, classic_offsets, make_digester, shard_of, shards_of
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.batch import Key, check_question, items_of, listed
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.protocol.config import FORMAT
from urifilter_redis.storage import documents
from urifilter_redis.storage.blobs import PIECES_AT_ONCE
from urifilter_redis.storage.checkpoints import last_good, places
from urifilter_redis.storage.documents import PIECE, Checkpoint, Content, Registration
from urifilter_redis.storage.records import KINDS
from urifilter_redis.storage.registry import registered

log = logging.getLogger("urifilter_redis")

_MAGIC = b"urifilter-archive 1\n"

#: The most bytes that a header may have. 4,096 shards need some 40 MB.
HEADER_LIMIT = 256 << 20

#: Unpacked pieces that an exported filter keeps in memory for later questions: 256 MiB.
PIECES_KEPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The header of the file.

    Attributes:
        registration: the filter's registration.
        exported: when the file was written, seconds since 1970.
        checkpoints: one checkpoint for each shard.
        blobs: the names of the blobs, in their order in the file.
        sizes: the size of each blob, bytes.
    """

    registration: Registration
    exported: float
    checkpoints: list[Checkpoint]
    blobs: list[str]
    sizes: list[int]

    def check(self) -> None:
        """Check that all parts belong to one filter and that none is missing.

        Raises:
            ArchiveCorrupt: a part is missing, or belongs to another filter.
        """
        config = self.registration.config
        self.registration.check(self.registration.filter)
        if [each.shard for each in self.checkpoints] != list(range(config.shards)):
            raise ArchiveCorrupt("it does not have one checkpoint of every shard")
        for each in self.checkpoints:
            each.check(config, each.shard)
        contents = [content for each in self.checkpoints for content in each.contents if content.pieces]
        packed = {content.blob: content.packed for content in contents}
        if "" in packed:
            raise ArchiveCorrupt("its checkpoints name contents without a blob")
        if dict(zip(self.blobs, self.sizes, strict=False)) != packed or len(self.blobs) != len(self.sizes):
            raise ArchiveCorrupt("its blobs are not those that its checkpoints need")


def export(backend: Backend, name: str, path: Path, report: Callable[[int, int], object]) -> Flow[list[Checkpoint]]:
    """Write the last good checkpoint of each shard into a file. The file gets its name once it is whole.

    Args:
        backend: the backend of the archive.
        name: the filter's name.
        path: the file. An existing file is replaced.
        report: called after each blob with the number of blobs written and the number of all.

    Returns:
        The exported checkpoints, one for each shard.

    Example:
        >>> backend = open_backend("file:///srv/uris")
        >>> checkpoints = drive(export(backend, "news", Path("news.urifilter"), lambda done, total: None))

    Raises:
        ArchiveMissing: the filter is not in the archive, or a shard has no checkpoint yet.
        ArchiveCorrupt: a shard has no good checkpoint.
        ArchiveError: the file cannot be written.
    """
    config = yield from registered(backend, name)
    if config is None:
        raise ArchiveMissing(f"archive {backend.shown}: there is no filter {name!r}")
    checkpoints = []
    for shard in range(config.shards):
        found, problems = yield from last_good(backend, name, (yield from places(backend, name, config, shard)))
        for problem in problems:
            log.warning("archive %s: %s: the checkpoint before is exported", backend.shown, problem)
        if found is None:
            text = f"shard {shard} of {name!r} has no checkpoint yet: urifilter checkpoint {name}"
            raise ArchiveMissing(f"archive {backend.shown}: {text}")
        checkpoints.append(found)
    sizes = {c.blob: c.packed for each in checkpoints for c in each.contents if c.blob}
    made = _Header(
        registration=Registration(format=FORMAT, filter=name, created=time.time(), config=config),
        exported=time.time(),
        checkpoints=checkpoints,
        blobs=list(sizes),
        sizes=list(sizes.values()),
    )
    header = documents.dump(made)
    with _new_file(path) as file:
        file.write(_MAGIC + b"%d\n" % len(header) + header)
        for done, (blob, size) in enumerate(sizes.items(), 1):
            for at in range(0, size, PIECE * PIECES_AT_ONCE):
                length = min(PIECE * PIECES_AT_ONCE, size - at)
                data = yield from backend.download(name, blob, at, length)
                if len(data) != length:
                    raise ArchiveCorrupt(f"archive {backend.shown}: blob {blob} has become shorter: export again")
                file.write(data)
            report(done, len(sizes))
    return checkpoints


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with _described(path):
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _described(path: Path) -> Iterator[None]:
    """Raise an OSError as an ArchiveError that names the file."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror or error}") from error


class ExportedFilter:
    """A filter in a file, which answers questions without any server.

    Attributes:
        name: the filter's name.
        config: the filter's configuration.
        checkpoints: one checkpoint for each shard.

    Example:
        >>> news = ExportedFilter(Path("news.urifilter"))
        >>> news.contains_many(["https://example.com/a", "https://example.com/b"])
        [True, False]
        >>> news.close()

    Raises:
        ArchiveError: the file cannot be read.
        ArchiveCorrupt: the file is damaged, or is not an exported filter.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _described(path):
            self._file = path.open("rb")
        try:
            header = self._header()
        except BaseException:
            self._file.close()
            raise
        self.name, self.config = header.registration.filter, header.registration.config
        self.checkpoints = header.checkpoints
        self._starts: dict[str, int] = {}
        at = self._file.tell()
        for blob, size in zip(header.blobs, header.sizes, strict=True):
            self._starts[blob] = at
            at += size
        self._digester = make_digester(self.config.normalize, self.config.hash, self.config.seed, self.config.rules)
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self._forgotten: dict[int, set[bytes]] = {}
        self._rows = [each.rows for each in self.checkpoints]
        self._cached_piece = functools.lru_cache(PIECES_KEPT)(self._bitmap_piece)

    def _header(self) -> _Header:
        with _described(self._path):
            if self._file.readline(len(_MAGIC)) != _MAGIC:
                raise ArchiveCorrupt(f"{self._path}: it is no exported filter: urifilter archive export writes one")
            length = self._file.readline(20)
            if not length.strip().isdigit() or int(length) > HEADER_LIMIT:
                raise ArchiveCorrupt(f"{self._path}: its header has an impossible length")
            text = self._file.read(int(length))
        header = documents.load(_Header, text, f"{self._path}: its header")
        header.check()
        return header

    def verify(self) -> None:
        """Read the whole file and check each piece.

        Raises:
            ArchiveCorrupt: a piece is damaged.
        """
        for checkpoint in self.checkpoints:
            for content in checkpoint.contents:
                for number in range(len(content.pieces)):
                    self.piece(content, number)

    def piece(self, content: Content, number: int) -> bytes:
        """Return one piece of a content, unpacked and checked.

        Raises:
            ArchiveError: the file cannot be read.
            ArchiveCorrupt: the piece is damaged.
        """
        self._check_open()
        spans = self._spans.setdefault(content.blob, content.spans())
        offset, length = spans[number]
        with _described(self._path):
            self._file.seek(self._starts[content.blob] + offset)
            packed = self._file.read(length)
        try:
            return content.pieces[number].unpack(packed)
        except ArchiveCorrupt as error:
            raise ArchiveCorrupt(f"{self._path}: {error}") from error

    def contains_many(self, uris: Iterable[Any], *, max_age: int | None = None, key: Key = None) -> list[bool]:
        """Return whether each item was seen, as ``UriFilter.contains_many`` does; the errors are those of ``ages``."""
        return list(map(bool, self.ages(uris, max_age=max_age, key=key)))

    def ages(self, uris: Iterable[Any], *, max_age: int | None = None, key: Key = None) -> list[int]:
        """Return the age of each item, as ``UriFilter.ages`` does.

        Raises:
            BadItem: some items cannot be items; the error has the index of each.
            TypeError: one string was given instead of a list.
            ValueError: this filter does not take this ``max_age``.
            ArchiveCorrupt: a piece is damaged.
        """
        self._check_open()
        check_question(self.config, "contains", max_age)
        digests = self._digester(items_of(listed(uris), key))
        return [
            self._age(shard, digest, max_age or 0)
            for shard, digest in zip(shards_of(digests, self.config.shards), digests, strict=True)
        ]

    def _age(self, shard: int, digest: bytes, max_age: int) -> int:
        checkpoint = self.checkpoints[shard]
        if shard not in self._forgotten:
            content = checkpoint.records["forgotten"]
            data = b"".join(self.piece(content, number) for number in range(len(content.pieces)))
            self._forgotten[shard] = {each for each, _ in KINDS["forgotten"].split(data)[0]}
        if digest in self._forgotten[shard]:
            return 0
        bitmaps = [row[shard_of(digest, self.config.shards * len(row)) % len(row)] for row in self._rows[shard]]
        tested = bitmaps[-max_age:][::-1]
        tested = tested[-1:] if self.config.write == "all" else tested
        for age, bitmap in enumerate(tested, 1):
            if self._has(shard, bitmap, digest):
                return min(age, 2) if self.config.retention == "rolling" else age
        return 0

    def _has(self, shard: int, bitmap: int, digest: bytes) -> bool:
        layout, units, k = self.config.layout, self.checkpoints[shard].bitmaps[bitmap].units, self.config.k
        if layout == "counting":
            cells = ((4 * at, 0xF0 >> 4 * (at % 2)) for at in classic_offsets(digest, units, k))
        else:
            offsets = blocked_offsets if layout == "blocked" else classic_offsets
            cells = ((at, 128 >> at % 8) for at in offsets(digest, units, k))
        for at, mask in cells:
            number, byte = divmod(at // 8, PIECE)
            if not self._cached_piece(shard, bitmap, number)[byte] & mask:
                return False
        return True

    def _bitmap_piece(self, shard: int, bitmap: int, number: int) -> bytes:
        return self.piece(self.checkpoints[shard].bitmaps[bitmap].content, number)

    def close(self) -> None:
        """Close the file; a later question raises ValueError."""
        self._file.close()

    def _check_open(self) -> None:
        if self._file.closed:
            raise ValueError(f"the exported filter {self._path} is closed: open it again")

    def __repr__(self) -> str:
        state = "closed" if self._file.closed else f"{self.config.layout}, {self.config.retention}"
        return f"<ExportedFilter {self.name} in {self._path}: {state}>"

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
