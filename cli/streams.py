"""Standard streams that were closed before the program began (``>&-``), or that have lost their reader.

A closed stream needs a stand-in: otherwise the first file or connection that is opened would become stdout, and
``sys.stdout`` would be None.
"""

from __future__ import annotations

import errno
import os
import sys

STDOUT, STDERR = 1, 2

#: The mode in which /dev/null is opened as each standard stream. Reading stdin and writing stdout fail then, as with a
#: closed stream; text for stderr vanishes.
_STAND_INS = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)


def take_closed() -> None:
    """Open a stand-in for each standard stream that is closed."""
    for descriptor, mode in enumerate(_STAND_INS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # the system takes the lowest free number, which is this stream's
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open as long as the program runs
    if sys.stdout is None:
        sys.stdout = open(STDOUT, "w", closefd=False)  # noqa: SIM115 - likewise
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115 - likewise


def explained(error: Exception) -> str:
    """Return the text of an error; for a write to a closed stdout, say so."""
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "stdout is closed: there is nowhere to print to"
    return str(error)


def drop_unwritten() -> None:
    """Drop text that could not be written to stdout; otherwise Python tries again at exit and fails with a message."""
    try:
        sys.stdout.flush()
    except OSError:
        to_nowhere(STDOUT)


def to_nowhere(descriptor: int) -> None:
    """Point stdout or stderr to /dev/null, so that the work goes on without its reader."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
