"""Read the lines of files in windows (lists of some thousand lines).

The item of a line is its bytes without ``\\n`` or ``\\r\\n``, and without a byte order mark at the start of the file.
"""

from __future__ import annotations

import codecs
import os
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
) -> Iterator[Window]:
    """Yield the lines of files in windows, in memory that does not grow.

    Args:
        files: the paths; ``-`` is stdin.
        bad: called with a message for each file that cannot be read and each line over ``LINE_LIMIT``.
        read: called with the number of bytes after each read.
        wait: called with the file's descriptor before each read.
    """
    for window, _ in placed_windows(files, bad, read, wait):
        yield window


def placed_windows(
    files: Sequence[str],
    bad: Callable[[str], None],
    read: Callable[[int], None] = lambda _: None,
    wait: Callable[[int], None] = lambda _: None,
    begin: Place = Place(),
) -> Iterator[tuple[Window, Place]]:
    """Do as ``windows_of`` from a place on; yield the place after each window, too."""
    for number, name in enumerate(files):
        if number < begin.file:
            continue
        shown = "stdin" if name == STDIN else name
        place = begin if number == begin.file else Place(number)
        try:
            descriptor = 0 if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
            continue
        try:
            if place.offset:
                os.lseek(descriptor, place.offset, os.SEEK_SET)
            yield from _windows(_lines(shown, _chunks(descriptor, read, wait), bad, place), first=not place.offset)
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
        finally:
            if descriptor:
                os.close(descriptor)


def _windows(chunks: Iterator[tuple[list[bytes], Place]], *, first: bool) -> Iterator[tuple[Window, Place]]:
    """Yield the lines of chunks in windows; ``first``: whether the first chunk is at the beginning of the file."""
    for chunk, end in chunks:
        offset = end.offset - sum(map(len, chunk)) - len(chunk)  # where the chunk begins, as each line has its newline
        beginning, first = first and offset <= 0, False
        for start in range(0, len(chunk), WINDOW):
            lines = chunk[start : start + WINDOW]
            items = [line[:-1] if line[-1:] == b"\r" else line for line in lines]
            if beginning and start == 0:
                items[0] = items[0].removeprefix(codecs.BOM_UTF8)
            offset += sum(map(len, lines)) + len(lines)
            done = start + len(lines)
            last = done == len(chunk)  # the last line of a file may have no newline
            yield (lines, items), end if last else Place(end.file, offset, end.lines - len(chunk) + done)


def _chunks(descriptor: int, read: Callable[[int], None], wait: Callable[[int], None]) -> Iterator[bytes]:
    while True:
        wait(descriptor)
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            return
        read(len(chunk))
        yield chunk


def _lines(
    name: str, chunks: Iterator[bytes], bad: Callable[[str], None], begin: Place
) -> Iterator[tuple[list[bytes], Place]]:
    """Yield the lines of each chunk, and the place after them; report a line over the limit and skip it."""
    number, offset, rest, too_long = begin.lines, begin.offset, bytearray(), False
    for chunk in chunks:
        offset += len(chunk)
        head, newline, tail = chunk.partition(b"\n")
        rest += head
        if len(rest) > LINE_LIMIT:
            rest, too_long = bytearray(), True
        if not newline:
            continue
        lines = [] if too_long else [bytes(rest)]
        if too_long:
            bad(f"{name}: line {number + 1} is longer than {LINE_LIMIT >> 20} MiB and left out")
        *others, last = tail.split(b"\n")
        lines += others
        number += len(others) + 1
        rest, too_long = bytearray(last), False
        yield lines, Place(begin.file, offset - len(last), number)
    if too_long:
        bad(f"{name}: line {number + 1} is longer than {LINE_LIMIT >> 20} MiB and left out")
    elif rest:
        yield [bytes(rest)], Place(begin.file, offset, number + 1)
