"""Lines in windows from files.

A line's item is its bytes without ``\\n`` or ``\\r\\n``, and without a byte order mark at the start of its file.
"""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING, TypeAlias

from urifilter_redis.flows.items import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Window", "total_size", "windows_of"]

#: Bytes of a line; a longer one is reported and left out.
LINE_LIMIT = 16 << 20

#: Bytes read at once; a pipe gives what is there, so lines are handled as they come.
CHUNK = 1 << 20

STDIN = "-"

#: The lines of a window and the item of each.
Window: TypeAlias = tuple[list[bytes], list[bytes]]


def total_size(files: Sequence[str]) -> int | None:
    """Return the bytes of all files; None if one is a pipe, or not there."""
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
    """Yield the lines of files, some thousand at a time, in memory that does not grow.

    Args:
        files: paths; ``-`` is stdin.
        bad: called with a message for a file that cannot be read and for each line over ``LINE_LIMIT``.
        read: called with the bytes read, as they are read.
        wait: called with the descriptor before it is read.
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
    """Yield the lines of each chunk that is read; a line over the limit is read past and reported."""
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
