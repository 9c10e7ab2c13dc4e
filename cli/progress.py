"""Show the progress of long work, if stderr is a terminal."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .streams import to_nowhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from urifilter_redis import UriFilter


@contextmanager
def progress(total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how many bytes are done; yield a function to call with the number of bytes after each step.

    Args:
        total: the number of all bytes; None if it is not known.
        quiet: whether to show nothing.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415 - takes a while to load

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console(), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda size: shown.advance(task, size)


@contextmanager
def bar(label: str, *, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Show how much of some work is done; yield a function to call with (done, total); total None: not known."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.progress import Progress  # noqa: PLC0415 - takes a while to load

    with Progress(console=_console(), transient=True) as shown:
        task = shown.add_task(label, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


@contextmanager
def steps(opened: UriFilter, label: str, *, quiet: bool = False) -> Iterator[None]:
    """Show the progress of a filter's rotation, restore, union or checkpoint."""
    with bar(label, quiet=quiet) as report:
        opened.on_progress = report
        yield


class _Stderr(io.FileIO):
    """stderr, which swallows errors if its terminal is closed while progress is shown."""

    def write(self, data: Any) -> int:
        """Write bytes; drop them if the terminal is closed."""
        try:
            return super().write(data)
        except OSError:
            to_nowhere(self.fileno())
            return len(data)


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415 - takes a while to load

    raw = _Stderr(sys.stderr.fileno(), "w", closefd=False)
    text = io.TextIOWrapper(io.BufferedWriter(raw), encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    return Console(file=text)
