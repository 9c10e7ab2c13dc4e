"""Read the lines of files in windows (lists of some thousand lines).

The item of a line is its bytes without ``\\n`` or ``\\r\\n``, and without a byte order mark at the start of the file.
The first bytes of a compressed file (gzip, bzip2, xz, Zstandard) show its format, and its lines are read.
"""

from __future__ import annotations

import codecs
import errno
import os
import select
import stat
import zlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from urifilter_redis.flows.items import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "STDIN",
    "Place",
    "Window",
    "is_compressed",
    "placed_windows",
    "total_size",
    "why_unreadable",
    "windows_of",
]

#: The most bytes of a line. A longer line is reported and left out.
LINE_LIMIT = 16 << 20

#: Bytes read at once. A pipe returns fewer at once, so that lines are handled as they come.
CHUNK = 1 << 20

#: Compressed bytes that are unpacked at once: few, because a small piece may hold very many equal lines.
PIECE = 4096

STDIN = "-"

#: The lines of a window and the item of each.
Window: TypeAlias = tuple[list[bytes], list[bytes]]


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two lines of some files.

    Attributes:
        file: the number of the file, from 0.
        offset: the bytes of that file before the place; of a compressed one those that were unpacked.
        lines: the lines of that file before the place.
    """

    file: int = 0
    offset: int = 0
    lines: int = 0


def total_size(files: Sequence[str]) -> int | None:
    """Return the size of all files in bytes; None if one is a pipe, or does not exist."""
    try:
        found = [os.fstat(0) if name == STDIN else os.stat(name) for name in files]  # noqa: PTH116 - no path for stdin
    except OSError:
        return None
    return sum(each.st_size for each in found) if all(each.st_size for each in found) else None


def why_unreadable(name: str) -> str:
    """Return why a file cannot be read; empty: nothing is known against it. A named pipe is not opened."""
    if name == STDIN:
        return ""
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116 - a name may be bytes that are no path
    except OSError as error:
        return error.strerror or str(error)
    number = errno.EISDIR if stat.S_ISDIR(mode) else 0 if os.access(name, os.R_OK) else errno.EACCES
    return os.strerror(number) if number else ""


def windows_of(
    files: Sequence[str],
    bad: Callable[[str], None],
    read: Callable[[int], None] = lambda _: None,
    wait: Callable[[int], None] = lambda _: None,
    *,
    most: int | None = None,
    pauses: bool = False,
) -> Iterator[Window]:
    """Yield the lines of files in windows, in memory that does not grow.

    Args:
        files: the paths; ``-`` is stdin.
        bad: called with a message for each file that cannot be read and each line over ``LINE_LIMIT``.
        read: called with the number of bytes after each read.
        wait: called with the file's descriptor before each read.
        most: the most lines of a window; None: ``WINDOW``.
        pauses: whether to yield an empty window where the next one may have to be waited for, so that the caller can
            finish its work with the others first.
    """
    for window, _ in placed_windows(files, bad, read, wait, most=most, pauses=pauses):
        yield window


def placed_windows(
    files: Sequence[str],
    bad: Callable[[str], None],
    read: Callable[[int], None] = lambda _: None,
    wait: Callable[[int], None] = lambda _: None,
    begin: Place = Place(),
    *,
    most: int | None = None,
    pauses: bool = False,
) -> Iterator[tuple[Window, Place]]:
    """Do as ``windows_of``, but begin at a place, and yield the place after each window, too."""
    for number, name in enumerate(files):
        if number < begin.file:
            continue
        shown = "stdin" if name == STDIN else name
        place = begin if number == begin.file else Place(number)
        # a named pipe is opened once it has a writer; Path.is_file raises for a name that is too long
        if pauses and name != STDIN and not os.path.isfile(name):  # noqa: PTH113
            yield ([], []), place
        try:
            descriptor = 0 if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
            continue
        try:
            chunks = _chunks(descriptor, read, wait, pauses=pauses)
            if place.offset and not is_compressed(name):
                os.lseek(descriptor, place.offset, os.SEEK_SET)
            else:
                chunks = _behind(place.offset, _unpacked(chunks))
            yield from _windows(_lines(shown, chunks, bad, place), most or WINDOW)
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
        finally:
            if descriptor:
                os.close(descriptor)


def _windows(chunks: Iterator[tuple[Window, Place]], most: int) -> Iterator[tuple[Window, Place]]:
    """Cut the lines of chunks into windows; an empty chunk is passed on as an empty window."""
    for (chunk, chunk_items), end in chunks:
        if len(chunk) <= most:
            yield (chunk, chunk_items), end
            continue
        offset = end.offset - sum(map(len, chunk)) - len(chunk)  # where the chunk begins, as each line has its newline
        for start in range(0, len(chunk), most):
            lines = chunk[start : start + most]
            items = lines if chunk_items is chunk else chunk_items[start : start + most]
            offset += sum(map(len, lines)) + len(lines)
            done = start + len(lines)
            last = done == len(chunk)  # the last line of a file may have no newline
            yield (lines, items), end if last else Place(end.file, offset, end.lines - len(chunk) + done)


def _chunks(
    descriptor: int, read: Callable[[int], None], wait: Callable[[int], None], *, pauses: bool
) -> Iterator[bytes | None]:
    """Yield the bytes of a file; with ``pauses`` yield None where they have to be waited for."""
    while True:
        if pauses and not select.select([descriptor], [], [], 0)[0]:
            yield None
        wait(descriptor)
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            return
        read(len(chunk))
        yield chunk


def _bzip2() -> Any:
    import bz2  # noqa: PLC0415 - seldom needed, and not in every Python

    return bz2.BZ2Decompressor()


def _xz() -> Any:
    import lzma  # noqa: PLC0415 - likewise

    return lzma.LZMADecompressor()


def _zstandard() -> Any:
    import zstandard  # noqa: PLC0415 - seldom needed

    return zstandard.ZstdDecompressor().decompressobj()


#: The first bytes of a compressed file, and a function that makes its decompressor. Those of bzip2 have its level.
_COMPRESSED: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b\x08": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\0": _xz,
    b"\x28\xb5\x2f\xfd": _zstandard,
    **{b"BZh%d%s" % (level, block): _bzip2 for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90")},
}


def is_compressed(name: str) -> bool:
    """Whether a file is compressed; false for stdin and for what is no regular file."""
    if name == STDIN or not os.path.isfile(name):  # noqa: PTH113 - as above
        return False
    with open(name, "rb") as file:  # noqa: PTH123 - likewise
        return file.read(max(map(len, _COMPRESSED))).startswith(tuple(_COMPRESSED))


def _unpacked(chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Yield the chunks of a file, unpacked if it is compressed."""
    head = b""
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        head += chunk
        if not any(magic.startswith(head) for magic in _COMPRESSED):  # enough to tell
            break
    make = next((make for magic, make in _COMPRESSED.items() if head.startswith(magic)), None)
    if head:
        chunks = chain([head], chunks)
    yield from chunks if make is None else _decompressed(chunks, make)


def _decompressed(chunks: Iterator[bytes | None], make: Callable[[], Any]) -> Iterator[bytes | None]:
    """Unpack chunks: one compressed part behind the other, as ``cat`` makes them, and zeros behind the last."""
    unpacker, done, size = make(), [], 0
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        for start in range(0, len(chunk), PIECE):
            piece = chunk[start : start + PIECE]
            while piece := piece.lstrip(b"\0") if unpacker.eof else piece:
                unpacker = make() if unpacker.eof else unpacker
                try:
                    done.append(unpacker.decompress(piece))
                except Exception as error:  # each format has its own
                    raise OSError(errno.EILSEQ, f"its compressed data are damaged ({error})") from error
                size += len(done[-1])
                piece = unpacker.unused_data if unpacker.eof else b""
            if size >= CHUNK or start + PIECE >= len(chunk):
                if size:
                    yield b"".join(done)
                done, size = [], 0
    if not unpacker.eof:
        raise OSError(errno.EILSEQ, "its compressed data end too early: the lines up to there were read")


def _behind(count: int, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Leave out the first ``count`` bytes of chunks."""
    for chunk in chunks:
        if count and chunk is not None:
            count, chunk = max(0, count - len(chunk)), chunk[count:]  # noqa: PLW2901
        if chunk is None or chunk:
            yield chunk


def _lines(
    name: str, chunks: Iterator[bytes | None], bad: Callable[[str], None], begin: Place
) -> Iterator[tuple[Window, Place]]:
    """Yield the lines of each chunk, and the place after them; report a line over the limit and skip it."""
    number, offset, rest, too_long = begin.lines, begin.offset, bytearray(), False
    first = not begin.offset
    for chunk in chunks:
        if chunk is None:
            yield ([], []), Place(begin.file, offset - len(rest), number)
            continue
        offset += len(chunk)
        lines = chunk.split(b"\n")
        rest += lines[0]
        if len(rest) > LINE_LIMIT:
            rest, too_long = bytearray(), True
        if len(lines) == 1:
            continue
        lines[0], last = bytes(rest), lines.pop()
        number += len(lines)
        if too_long:
            bad(f"{name}: line {number - len(lines) + 1} is longer than {LINE_LIMIT >> 20} MiB and left out")
            del lines[0]
            first = False
        returns = b"\r" in chunk or b"\r" in rest
        if lines:
            yield (lines, _items(lines, first=first, returns=returns)), Place(begin.file, offset - len(last), number)
        rest, too_long, first = bytearray(last), False, False
    if too_long:
        bad(f"{name}: line {number + 1} is longer than {LINE_LIMIT >> 20} MiB and left out")
    elif rest:
        lines = [bytes(rest)]
        yield (lines, _items(lines, first=first, returns=True)), Place(begin.file, offset, number + 1)


def _items(lines: list[bytes], *, first: bool, returns: bool) -> list[bytes]:
    """Return the item of each line; ``first``: the file begins with them; ``returns``: some may end with ``\\r``."""
    items = [line.removesuffix(b"\r") for line in lines] if returns else lines
    if first and items and items[0].startswith(codecs.BOM_UTF8):
        items = [items[0].removeprefix(codecs.BOM_UTF8), *items[1:]]
    return items
