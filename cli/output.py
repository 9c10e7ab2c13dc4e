"""Write lines to stdout, and keep the items of those that the reader may not have got.

Each line is written with its end, also the last one of a file, as sort and uniq do.
"""

from __future__ import annotations

import array
import collections
import contextlib
import errno
import fcntl
import os
import select
import stat
import termios
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The buffer of a pipe, unless its reader has enlarged it, in bytes.
PIPE = 64 << 10

#: Bytes at the end of the output that a reader that has ended may not have processed. The buffer of a pipe holds
#: ``PIPE``, of a socket 208 KiB, of a terminal some 12 KiB; programs read ahead, too (head 8 KiB, grep 96 KiB).
READ_AHEAD = 320 << 10

#: Seconds to wait, once all is read, for a reader that stops early (head, a terminal that is closed) to close.
LINGER = 0.05

#: Seconds between two checks of a pipe.
POLL = 0.02

_STDOUT = 1


@dataclass(frozen=True, slots=True)
class _Block:
    """Some lines.

    Attributes:
        begin: the bytes of all lines before them.
        end: the bytes before their end.
        lines: the lines.
        items: the item of each.
    """

    begin: int
    end: int
    lines: Sequence[bytes]
    items: Sequence[Any]


class Output:
    """Unbuffered stdout that knows which items are undelivered. ``end`` is the end of a line.

    Attributes:
        is_read: whether somebody reads it now, for whom a write may wait, and who may end before all is read.
    """

    def __init__(self, end: bytes = b"\n") -> None:
        self._end = end
        mode = os.fstat(_STDOUT).st_mode
        self._pipe = stat.S_ISFIFO(mode)
        self._terminal = os.isatty(_STDOUT)
        self._file = stat.S_ISREG(mode)
        self.is_read = self._pipe or self._terminal or stat.S_ISSOCK(mode)
        self._added = 0
        self._written = 0
        self._unwritten: collections.deque[bytes] = collections.deque()
        self._undelivered: collections.deque[_Block] = collections.deque()

    def add(self, lines: Sequence[bytes], items: Sequence[Any]) -> None:
        """Take lines to write, and the item of each. They are undelivered until ``write`` has written them."""
        if lines:
            text = self._end.join([*lines, b""])
            begin, self._added = self._added, self._added + len(text)
            self._unwritten.append(text)
            self._undelivered.append(_Block(begin, self._added, lines, items))

    def write_header(self, header: bytes) -> None:
        """Write a line that is of no item.

        Raises:
            OSError: as ``write``.
        """
        self._added += len(header) + 1
        self._unwritten.append(header + self._end)
        self.write()

    def write(self) -> None:
        """Write the lines that were added.

        Raises:
            OSError: the pipe or terminal is closed, or the disk is full.
        """
        while self._unwritten:
            self._write(self._unwritten.popleft())
        while self._undelivered and self._undelivered[0].end <= self._delivered:
            self._undelivered.popleft()

    def finish(self) -> None:
        """Wait until the reader of a pipe has read everything; other readers are not waited for.

        Raises:
            BrokenPipeError: the reader closed the pipe before the end.
            OSError: the terminal was closed.
        """
        if not self.is_read:
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

    def undelivered(self) -> list[Any]:
        """Return the items of the lines that were not written, or that the reader may not have read."""
        items, delivered = [], self._delivered
        for block in self._undelivered:
            end = block.begin
            for line, item in zip(block.lines, block.items, strict=True):
                end += len(line) + 1
                if end > delivered:
                    items.append(item)
        return items

    @property
    def _delivered(self) -> int:
        """The bytes that the reader has certainly read."""
        return self._written - (READ_AHEAD + _enlarged() if self.is_read else 0)

    def _write(self, text: bytes) -> None:
        data, begin, end = memoryview(text), self._written, None
        try:
            while data:
                size = os.write(_STDOUT, data)
                self._written += size
                data = data[size:]
                if self._file and data:
                    end = os.lseek(_STDOUT, 0, os.SEEK_CUR)
        except OSError:
            if end is not None:
                self._cut(end, self._written - self._whole(begin))
            raise

    def _whole(self, begin: int) -> int:
        """Return the bytes up to the end of the last line that is written whole; at least ``begin``.

        A line may be a record with line ends within it.
        """
        for block in self._undelivered:
            ends = accumulate((len(line) + 1 for line in block.lines), initial=block.begin)
            begin = max([begin, *takewhile(lambda end: end <= self._written, ends)])
        return begin

    def _cut(self, end: int, size: int) -> None:
        """Cut off the line that a full disk took in part: what is appended next would go on in it."""
        with contextlib.suppress(OSError):  # who may only append, say
            if size and os.fstat(_STDOUT).st_size == end:  # else others have written behind it
                os.ftruncate(_STDOUT, end - size)
                os.lseek(_STDOUT, end - size, os.SEEK_SET)
                self._written -= size


def _enlarged() -> int:
    """Return the bytes by which the reader has enlarged the buffer of stdout's pipe."""
    try:
        return max(0, fcntl.fcntl(_STDOUT, fcntl.F_GETPIPE_SZ) - PIPE)
    except (AttributeError, OSError):  # no pipe can be enlarged on this system; stdout is none
        return 0


def _unread() -> int:
    """Return the number of unread bytes in stdout's pipe; 0 where the system does not know it."""
    size = array.array("i", [0])
    try:
        fcntl.ioctl(_STDOUT, termios.FIONREAD, size)
    except OSError:
        return 0
    return size[0]
