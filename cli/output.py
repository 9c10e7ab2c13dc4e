"""Write lines to stdout, and keep the items of those that the reader may not have got.

Each line is written with ``\\n``, also the last one of a file, as sort and uniq do.
"""

from __future__ import annotations

import array
import collections
import errno
import fcntl
import os
import select
import stat
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Output"]

#: Bytes written at once.
WRITE = 1 << 16

#: Bytes at the end of the output that a reader that has ended may not have processed. The buffer of a pipe holds
#: 64 KiB, of a socket 208 KiB, of a terminal some 12 KiB; programs read ahead, too (head 8 KiB, grep 96 KiB).
READ_AHEAD = 320 << 10

#: Seconds to wait, once all is read, for a reader that stops early (head, a terminal that is closed) to close.
LINGER = 0.05

#: Seconds between two checks of a pipe.
POLL = 0.02

_STDOUT = 1


class Output:
    """Unbuffered stdout that knows which items are undelivered."""

    def __init__(self) -> None:
        mode = os.fstat(_STDOUT).st_mode
        self._pipe = stat.S_ISFIFO(mode)
        self._terminal = os.isatty(_STDOUT)
        self._read = self._pipe or self._terminal or stat.S_ISSOCK(mode)  # a reader may end before it has read all
        self._added = 0
        self._written = 0
        self._lines: collections.deque[bytes] = collections.deque()
        self._undelivered: collections.deque[tuple[int, bytes]] = collections.deque()

    def add(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        """Take lines to write, each with its item. They are undelivered until ``write`` has written them."""
        for line, item in lines:
            self._added += len(line) + 1
            self._lines.append(line)
            self._undelivered.append((self._added, item))

    def write(self) -> None:
        """Write the lines that were added.

        Raises:
            OSError: the pipe or terminal is closed, or the disk is full.
        """
        while self._lines:
            block = bytearray()
            while self._lines and len(block) < WRITE:
                block += self._lines.popleft() + b"\n"
            self._write(block)
        delivered = self._written - (READ_AHEAD if self._read else 0)
        while self._undelivered and self._undelivered[0][0] <= delivered:
            self._undelivered.popleft()

    def finish(self) -> None:
        """Wait until the reader of a pipe has read everything; other readers are not waited for.

        Raises:
            BrokenPipeError: the reader closed the pipe before the end.
            OSError: the terminal was closed.
        """
        if not self._read:
            return
        poll = select.poll()
        poll.register(_STDOUT, 0)
        while self._pipe and _unread():
            if poll.poll(1000 * POLL):
                break
        if poll.poll(1000 * LINGER):
            if self._terminal:
                raise OSError(errno.EIO, "the terminal was closed")
            raise BrokenPipeError("the reader closed the pipe before the end")

    def undelivered(self) -> list[bytes]:
        """Return the items of the lines that were not written, or that the reader may not have read."""
        return [item for end, item in self._undelivered if self._read or end > self._written]

    def _write(self, block: bytearray) -> None:
        data = memoryview(block)
        while data:
            size = os.write(_STDOUT, data)
            self._written += size
            data = data[size:]


def _unread() -> int:
    """Return the number of unread bytes in stdout's pipe; 0 where the system does not know it."""
    size = array.array("i", [0])
    try:
        fcntl.ioctl(_STDOUT, termios.FIONREAD, size)
    except OSError:
        return 0
    return size[0]
