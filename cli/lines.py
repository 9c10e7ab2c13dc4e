"""Read the lines of files in windows (lists of some thousand lines).

The item of a line is its bytes without the ``\\n`` or ``\\r\\n`` at its end, and without a byte order mark at its
beginning, which stands within a stream where ``cat`` has joined two files. The item is what a command prints, so that
the next command knows the printed line. The first bytes of a compressed file (gzip, bzip2, xz, Zstandard) show its
format, and its lines are read; those of a file that has no lines as bytes show what it is, and it is refused.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
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
    "item_of",
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

#: The most bytes back to which a Zstandard file may refer, and so of memory for it: what ``zstd --long=31`` makes.
LARGEST_WINDOW = 1 << 31

#: The most first bytes that show what a file is.
HEAD = 10

STDIN = "-"

#: The items of a window of lines.
Window: TypeAlias = list[bytes]


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
    return os.strerror(number) if number else _why_refused(_head_of(name))


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
            yield [], place
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


def _windows(chunks: Iterator[tuple[list[bytes], Place]], most: int) -> Iterator[tuple[Window, Place]]:
    """Cut the lines of chunks into windows of items; an empty chunk is passed on as an empty window."""
    for chunk, end in chunks:
        items = _items(chunk)
        if len(chunk) <= most:
            yield items, end
            continue
        offset = end.offset - sum(map(len, chunk)) - len(chunk)  # where the chunk begins, as each line has its newline
        for start in range(0, len(chunk), most):
            lines = chunk[start : start + most]
            offset += sum(map(len, lines)) + len(lines)
            done = start + len(lines)
            last = done == len(chunk)  # the last line of a file may have no newline
            place = end if last else Place(end.file, offset, end.lines - len(chunk) + done)
            yield items[start : start + most], place


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

    return zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).decompressobj()


#: The first bytes of a compressed file, and a function that makes its decompressor. Those of bzip2 have its level;
#: a frame that Zstandard skips, of one of 16 kinds, stands before each frame that pzstd makes.
_COMPRESSED: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b\x08": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\0": _xz,
    b"\x28\xb5\x2f\xfd": _zstandard,
    **{b"%c\x2a\x4d\x18" % kind: _zstandard for kind in range(0x50, 0x60)},
    **{b"BZh%d%s" % (level, block): _bzip2 for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90")},
}


_UTF_16 = "UTF-16, and its lines are no bytes: convert it with iconv -f UTF-16 -t UTF-8"
_UTF_32 = "UTF-32, and its lines are no bytes: convert it with iconv -f UTF-32 -t UTF-8"
_PACKED = "{}: unpack it first, and name what it holds"
_SEEN = "a binary requests.seen of Scrapy: od -An -v -tx1 -w22 FILE | tr -d ' ' | cut -c5- prints its fingerprints"

#: The first bytes of files that have no lines to read, and what such a file is; the first that fits counts.
_REFUSED = [
    (re.compile(first, re.DOTALL), text)
    for first, text in [
        (rb"\xff\xfe\0\0|\0\0\xfe\xff", _UTF_32),
        (rb"[\t -~]\0\0\0|\0\0\0[\t -~]", _UTF_32),
        (rb"\xff\xfe|\xfe\xff", _UTF_16),
        (rb"([\t -~]\0){2}|(\0[\t -~]){2}", _UTF_16),
        (rb"\0\x14", _SEEN),  # the length of the first fingerprint, an SHA-1
        (rb"PK(\x03\x04|\x05\x06)", _PACKED.format("a zip archive")),
        (rb"7z\xbc\xaf\x27\x1c", _PACKED.format("a 7z archive")),
        (rb"Rar!\x1a\x07", _PACKED.format("a RAR archive")),
        (rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", _PACKED.format("compressed by lz4")),
        (rb"LZIP\x01", _PACKED.format("compressed by lzip")),
        (rb"\x5d\0\0", _PACKED.format("compressed by lzma")),
        (rb"\x1f\x9d", _PACKED.format("compressed by compress")),
    ]
]


def is_compressed(name: str) -> bool:
    """Whether a file is compressed; false for stdin and for what is no regular file."""
    return _decompressor(_head_of(name)) is not None


def _head_of(name: str) -> bytes:
    """Return the first bytes of a file; none of stdin and of what is no regular file."""
    if name == STDIN or not os.path.isfile(name):  # noqa: PTH113 - as above
        return b""
    with open(name, "rb") as file:  # noqa: PTH123 - likewise
        return file.read(HEAD)


def _decompressor(head: bytes) -> Callable[[], Any] | None:
    return next((make for magic, make in _COMPRESSED.items() if head.startswith(magic)), None)


def _why_refused(head: bytes) -> str:
    """Return what a file is that has no lines, by its first bytes; empty: its lines are read."""
    return next((f"it is {text}" for first, text in _REFUSED if first.match(head)), "")


def _unpacked(chunks: Iterator[bytes | None], *, within: bool = False) -> Iterator[bytes | None]:
    """Yield the chunks of a file, unpacked if it is compressed; ``within``: they were unpacked already.

    Raises:
        OSError: the file has no lines, or is compressed twice, or its compressed data are damaged.
    """
    head = b""
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        head += chunk
        if len(head) >= HEAD or b"\n" in head:  # enough to tell, and a line is not kept waiting
            break
    make = _decompressor(head)
    if why := _why_refused(head) or ("it is compressed twice: unpack it first" if make and within else ""):
        raise OSError(errno.EILSEQ, f"{why} (in what was unpacked)" if within else why)
    if head:
        chunks = chain([head], chunks)
    yield from chunks if make is None else _unpacked(_decompressed(chunks, make), within=True)


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
) -> Iterator[tuple[list[bytes], Place]]:
    """Yield the lines of each chunk, and the place after them; report a line over the limit and skip it."""
    number, offset, rest, too_long = begin.lines, begin.offset, bytearray(), False
    for chunk in chunks:
        if chunk is None:
            yield [], Place(begin.file, offset - len(rest), number)
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
        if lines:
            yield lines, Place(begin.file, offset - len(last), number)
        rest, too_long = bytearray(last), False
    if too_long:
        bad(f"{name}: line {number + 1} is longer than {LINE_LIMIT >> 20} MiB and left out")
    elif rest:
        yield [bytes(rest)], Place(begin.file, offset, number + 1)


def item_of(line: bytes) -> bytes:
    """Return the item of a line, which is its own item: also of a line with two ends or two byte order marks."""
    line = line.rstrip(b"\r")
    while line.startswith(codecs.BOM_UTF8):
        line = line.removeprefix(codecs.BOM_UTF8)
    return line


def _items(lines: list[bytes]) -> list[bytes]:
    """Return the item of each line."""
    text = b"\n".join(lines)  # one search is faster than one a line
    return [*map(item_of, lines)] if b"\r" in text or codecs.BOM_UTF8 in text else lines
