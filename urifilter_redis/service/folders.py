"""The folder in which the workers of a service share their counts, and what dead services left of theirs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "urifilter-metrics-"


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    """Make the folder of a service, which holds a lock on it while the body runs; remove those that nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_dead(folder)
    folder, held = _made()
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _made() -> tuple[Path, int]:
    """Make a folder and lock it; again if another service has found it before it was locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            held = os.open(folder, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_EX)
            if folder.exists():
                return folder, held
            os.close(held)


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is held, is another user's, or has gone
        found = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(found)
