"""Lines to stdout, knowing which of them may not have reached their reader.

Lines are written with ``\\n``, the last one of a file too, as sort and uniq do.
"""

from __future__ import annotations

import array
import collections
import fcntl
import os
import select
import stat
import termios
from collections.abc import Iterable

__all__ = ["Output"]

#: Bytes written at once.
WRITE = 1 << 16

#: Bytes before the end of what went into a pipe that a reader who has closed it may not have looked at: what a pipe
#: holds (64 KiB), and what programs read ahead (head 8 KiB, grep 96 KiB).
READ_AHEAD = 320 << 10

#: Seconds after everything was read in which a reader that stops early (head) is seen to close the pipe.
LINGER = 0.05

#: Seconds between two looks at a pipe.
POLL = 0.02

_STDOUT = 1


class Output:
    """stdout, unbuffered."""

    def __init__(self) -> None:
        self._pipe = stat.S_ISFIFO(os.fstat(_STDOUT).st_mode)
        self._added = 0
        self._written = 0
        self._lines: collections.deque[bytes] = collections.deque()
        self._undelivered: collections.deque[tuple[int, bytes]] = collections.deque()

    def add(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        """Take lines and the item of each; from now on they are undelivered."""
        for line, item in lines:
            self._added += len(line) + 1
            self._lines.append(line)
            self._undelivered.append((self._added, item))

    def write(self) -> None:
        """Write what was added.

        Raises:
            OSError: a closed pipe, a full disk.
        """
        while self._lines:
            block = bytearray()
            while self._lines and len(block) < WRITE:
                block += self._lines.popleft() + b"\n"
            self._write(block)
        delivered = self._written - (READ_AHEAD if self._pipe else 0)
        while self._undelivered and self._undelivered[0][0] <= delivered:
            self._undelivered.popleft()

    def finish(self) -> None:
        """Wait until a pipe's reader has read everything.

        Raises:
            BrokenPipeError: it closed the pipe before the end.
        """
        if not self._pipe:
            return
        poll = select.poll()
        poll.register(_STDOUT, 0)
        while _unread():
            if poll.poll(1000 * POLL):
                break
        if poll.poll(1000 * LINGER):
            raise BrokenPipeError("the reader closed the pipe before the end")

    def undelivered(self) -> list[bytes]:
        """Return the items of the lines that were not written, or that a pipe's reader may not have read."""
        return [item for end, item in self._undelivered if self._pipe or end > self._written]

    def _write(self, block: bytearray) -> None:
        data = memoryview(block)
        while data:
            size = os.write(_STDOUT, data)
            self._written += size
            data = data[size:]


def _unread() -> int:
    """Return the bytes in stdout's pipe that nobody has read yet; 0 where the system does not tell."""
    size = array.array("i", [0])
    try:
        fcntl.ioctl(_STDOUT, termios.FIONREAD, size)
    except OSError:
        return 0
    return size[0]
