"""Standard streams that were closed before the program began (``>&-``), or that nobody reads any more.

Without something in the place of a closed one, the first file or connection that is opened would be stdout; and
Python's own objects for the streams would be None.
"""

from __future__ import annotations

import errno
import os
import sys

__all__ = ["STDERR", "STDOUT", "drop_unwritten", "explained", "take_closed", "to_nowhere"]

STDOUT, STDERR = 1, 2

#: For each standard stream how /dev/null stands in for it: what is read from stdin or written to stdout fails, as it
#: does with a closed one; what is said on stderr vanishes.
_STAND_INS = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)


def take_closed() -> None:
    """Put something in the place of each standard stream that is closed."""
    for descriptor, mode in enumerate(_STAND_INS):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number that is free is this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open as long as the program runs
    if sys.stdout is None:
        sys.stdout = open(STDOUT, "w", closefd=False)  # noqa: SIM115 - likewise
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115 - likewise


def explained(error: Exception) -> str:
    """Return the text of an error; of what failed because stdout is closed, that."""
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "stdout is closed: there is nowhere to print to"
    return str(error)


def drop_unwritten() -> None:
    """Forget what could not be written to stdout and was told: Python would try, and fail, once more at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        to_nowhere(STDOUT)


def to_nowhere(descriptor: int) -> None:
    """Let what is written to stdout or stderr vanish: its reader or terminal is gone, and the work goes on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
