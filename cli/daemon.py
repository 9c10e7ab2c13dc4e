"""Run a command in the background. A pidfile, which the daemon holds locked, serves ``stop`` and ``status``."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from urifilter_redis import UriFilterError
from urifilter_redis.extras import how_to_get

from .common import Shared, pass_shared, say, shared, with_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Seconds that a daemon has to finish its current work and stop.
PATIENCE = 60.0

#: Seconds to try for the lock of a pidfile, which ``running`` holds for a moment.
LOCK_PATIENCE = 1.0

#: Seconds that a starting daemon has to lock its pidfile.
STARTED = 10.0

#: The exit code of ``status`` and ``stop`` when no daemon runs. Source: Linux Standard Base 5.0, init scripts.
NOT_RUNNING = 3

_PATH = click.Path(dir_okay=False, resolve_path=True, path_type=Path)

#: The options of a command that can run in the background; ``background`` takes their values.
daemon_options = with_options(
    click.option("--daemon", is_flag=True, help="Run in the background; needs --pidfile and --log-file."),
    click.option("--pidfile", type=_PATH, help="A file to hold while it runs; for stop and status."),
    click.option("--log-file", type=_PATH, help="Write the log to this file instead of stderr."),
)


def check_background(*, daemon: bool, pidfile: Path | None, log_file: Path | None) -> None:
    """Check the arguments of ``background``, so that a command can fail before it prepares its work.

    Raises:
        click.UsageError: ``daemon`` is set without a pidfile and a log file.
        UriFilterError: a process holds the pidfile already, or the folder of a file is missing.
        OSError: the log file cannot be written.
    """
    if daemon and (pidfile is None or log_file is None):
        raise click.UsageError("--daemon needs --pidfile and --log-file")
    for option, file in (("--pidfile", pidfile), ("--log-file", log_file)):
        if file is not None and not file.parent.is_dir():
            raise UriFilterError(f"{option} {file}: there is no folder {file.parent}: make it first")
    if log_file is not None:
        log_file.open("a").close()
    if pidfile is not None and (process := running(pidfile)):
        raise UriFilterError(f"it runs already, as process {process} ({pidfile})")


@contextlib.contextmanager
def background(
    *, daemon: bool, pidfile: Path | None, log_file: Path | None, keeps: Sequence[int] = ()
) -> Iterator[None]:
    """Hold the pidfile while the body runs; with ``daemon`` run the body in the background.

    Args:
        daemon: whether to go into the background. The process in the foreground ends once the daemon runs.
        pidfile: the file to lock; None: no file.
        log_file: the file for stdout and stderr of the daemon.
        keeps: the descriptors of files that stay open in the daemon.

    Raises:
        click.UsageError: as ``check_background``.
        UriFilterError: as ``check_background``, or python-daemon is not installed.
    """
    check_background(daemon=daemon, pidfile=pidfile, log_file=log_file)
    if not daemon:
        with _held(pidfile):
            yield
        return
    try:
        from daemon import DaemonContext  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UriFilterError(f"--daemon needs python-daemon: {how_to_get('daemon')}") from error
    assert log_file is not None  # noqa: S101 - see above
    assert pidfile is not None  # noqa: S101 - likewise
    if process := os.fork():
        os.waitpid(process, 0)
        _tell_started(pidfile, log_file)
        sys.exit(0)
    with log_file.open("a") as log:
        mask = os.umask(0)
        os.umask(mask)  # the mask can only be read by setting it; DaemonContext would set 0
        context = DaemonContext(
            stdout=log,
            stderr=log,
            signal_map={},
            umask=mask,
            files_preserve=list(keeps),
            working_directory=".",  # relative paths of settings and environment mean what they meant
        )
        with context, _held(pidfile):
            yield


def _tell_started(pidfile: Path, log_file: Path) -> None:
    """Wait until the daemon holds its pidfile."""
    end = time.monotonic() + STARTED
    while not (process := running(pidfile)):
        if time.monotonic() > end:
            raise UriFilterError(f"it did not start: {log_file} says why")
        time.sleep(0.02)
    say(f"runs as process {process}; log: {log_file}")


@contextlib.contextmanager
def _held(pidfile: Path | None) -> Iterator[None]:
    if pidfile is None:
        yield
        return
    with pidfile.open("a+") as file:
        # The id of a process that was killed goes before the file is seen locked: it may be anybody's by now.
        _lock(file, pidfile, fcntl.LOCK_SH)
        file.truncate(0)
        _lock(file, pidfile, fcntl.LOCK_EX)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            pidfile.unlink(missing_ok=True)


def _lock(file: TextIO, pidfile: Path, kind: int) -> None:
    """Lock a pidfile; try for ``LOCK_PATIENCE``."""
    end = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise UriFilterError(f"it runs already ({pidfile})") from error
            time.sleep(0.01)
        else:
            return


def running(pidfile: Path) -> int:
    """Return the id of the process that holds a pidfile; 0 if no process does, even if the file has an id.

    Raises:
        OSError: the pidfile cannot be read.
    """
    try:
        with pidfile.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read().strip() or 0)
    except FileNotFoundError:
        pass
    return 0


def add_stop_and_status(group: click.Group, what: str) -> None:
    """Add the commands ``stop`` and ``status`` to a group; ``what`` names its daemon in the help."""
    pidfile = click.option("--pidfile", required=True, type=click.Path(path_type=Path), help=f"The {what}'s pidfile.")
    example = f"\b\nExample:\n  urifilter {group.name} %s --pidfile /run/urifilter/{group.name}.pid"

    @group.command(help=f"Stop the {what} that holds a pidfile, and wait until it has stopped.\n\n{example % 'stop'}")
    @pidfile
    @shared
    def stop(pidfile: Path) -> None:
        process = running(pidfile)
        if not process:
            say(f"it does not run ({pidfile})")
            raise click.exceptions.Exit(NOT_RUNNING)
        os.kill(process, signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while running(pidfile):
            if time.monotonic() > end:
                raise UriFilterError(f"process {process} has not stopped within {PATIENCE:.0f} s: its log says why")
            time.sleep(0.05)
        say(f"stopped process {process}")

    text = f"Say whether a {what} holds a pidfile; exits with 0 if so, with 3 if not."

    @group.command(help=f"{text}\n\n{example % 'status'}")
    @pidfile
    @shared
    @pass_shared
    def status(options: Shared, pidfile: Path) -> None:
        process = running(pidfile)
        text = f"running, process {process}" if process else "not running"
        options.tell({"running": bool(process), "process": process or None}, text)
        sys.exit(0 if process else NOT_RUNNING)
