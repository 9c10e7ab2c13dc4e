"""Read the lines of files in windows (lists of some thousand lines).

The item of a line is its bytes without ``\\n`` or ``\\r\\n``, and without a byte order mark at the start of the file.
"""

from __future__ import annotations

import codecs
import os
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from urifilter_redis.flows.items import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["STDIN", "Place", "Window", "placed_windows", "total_size", "windows_of"]

#: The most bytes of a line. A longer line is reported and left out.
LINE_LIMIT = 16 << 20

#: Bytes read at once. A pipe returns fewer at once, so that lines are handled as they come.
CHUNK = 1 << 20

STDIN = "-"

#: The lines of a window and the item of each.
Window: TypeAlias = tuple[list[bytes], list[bytes]]


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two lines of some files.

    Attributes:
        file: the number of the file, from 0.
        offset: the bytes of that file before the place.
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
    """Do as ``windows_of`` from a place on; yield the place after each window, too."""
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
            if place.offset:
                os.lseek(descriptor, place.offset, os.SEEK_SET)
            chunks = _chunks(descriptor, read, wait, pauses=pauses)
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
