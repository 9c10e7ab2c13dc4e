"""The folder in which the workers of a service share their counts, and what dead services left of theirs."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from urifilter_redis.service import FOLDER_VARIABLE

log = logging.getLogger("urifilter_redis.service")

_PREFIX = "urifilter-metrics-"

#: Bytes that each process reserves for its counts, by the beginnings of the names that prometheus_client gives the
#: files. Counters have room for several hundred filters. Histograms and gauges do not depend on the filters.
_RESERVED = {"counter": 1 << 20, "histogram": 1 << 18, "gauge_livesum": 1 << 16}

#: Bytes at the end of these files that are used and may be zeros: those of a value and its time.
_ZEROS = 16


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


def reserve() -> None:
    """Write the files of this process's counts, all zeros, where they do not exist.

    prometheus_client takes such a file for an empty one. It would make a sparse one itself, and map it into memory:
    if the disk is full, the first count on a new page ends the process by SIGBUS.

    Raises:
        OSError: the disk is full, or the folder has gone.
    """
    files = _files_of(os.getpid())
    try:
        for file, size in files.items():
            with file.open("ab") as out:
                out.write(bytes(max(0, size - out.tell())))
    except OSError:
        for file in files:
            file.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """Reserve the files of this process's counts for the body, which imports prometheus_client.

    Without them this process counts in its memory, and the metrics leave its counts out.
    """
    try:
        reserve()
    except OSError as error:
        log.error("the metrics leave out what process %s counts: %s", os.getpid(), error)  # noqa: TRY400 - it says all
        folder = os.environ.pop(FOLDER_VARIABLE)
        try:
            yield
        finally:
            os.environ[FOLDER_VARIABLE] = folder
    else:
        yield


def give_back(process: int) -> None:
    """Give back what a process that has ended has reserved, and not used; its counts stay."""
    for file in _files_of(process):
        with contextlib.suppress(OSError):
            used = len(file.read_bytes().rstrip(b"\0")) + _ZEROS
            os.truncate(file, min(used, file.stat().st_size))


def _files_of(process: int) -> dict[Path, int]:
    folder = Path(os.environ[FOLDER_VARIABLE])
    return {folder / f"{kind}_{process}.db": size for kind, size in _RESERVED.items()}
