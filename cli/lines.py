"""Read the lines of files in windows (lists of some thousand lines).

The item of a line is its bytes without ``\\n`` or ``\\r\\n``, and without a byte order mark at the start of the file.
"""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING, TypeAlias

from urifilter_redis.flows.items import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Window", "total_size", "windows_of"]

#: The most bytes of a line. A longer line is reported and left out.
LINE_LIMIT = 16 << 20

#: Bytes read at once. A pipe returns fewer at once, so that lines are handled as they come.
CHUNK = 1 << 20

STDIN = "-"

#: The lines of a window and the item of each.
Window: TypeAlias = tuple[list[bytes], list[bytes]]


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
    for name in files:
        shown = "stdin" if name == STDIN else name
        try:
            descriptor = 0 if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
            continue
        try:
            yield from _windows(_lines(shown, _chunks(descriptor, read, wait), bad))
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
        finally:
            if descriptor:
                os.close(descriptor)


def _windows(chunks: Iterator[list[bytes]]) -> Iterator[Window]:
    first = True
    for chunk in chunks:
        for start in range(0, len(chunk), WINDOW):
            lines = chunk[start : start + WINDOW]
            items = [line[:-1] if line[-1:] == b"\r" else line for line in lines]
            if first:
                items[0] = items[0].removeprefix(codecs.BOM_UTF8)
            first = False
            yield lines, items


def _chunks(descriptor: int, read: Callable[[int], None], wait: Callable[[int], None]) -> Iterator[bytes]:
    while True:
        wait(descriptor)
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            return
        read(len(chunk))
        yield chunk


def _lines(name: str, chunks: Iterator[bytes], bad: Callable[[str], None]) -> Iterator[list[bytes]]:
    """Yield the lines of each chunk; report a line over the limit and skip it."""
    number, rest, too_long = 0, bytearray(), False
    for chunk in chunks:
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
        yield lines
    if too_long:
        bad(f"{name}: line {number + 1} is longer than {LINE_LIMIT >> 20} MiB and left out")
    elif rest:
        yield [bytes(rest)]
