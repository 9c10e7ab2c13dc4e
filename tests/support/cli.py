"""The command line as a user runs it: the same entry, in this process or in one of its own.

``run`` is the cheap one. Commands read and write the descriptors of the standard streams, which click's own runner
leaves alone, so these are files meanwhile. A command that forks, serves, or uses the embedded server, and one that is
run in a thread, needs a process: ``run_process``, or ``start`` for one that is spoken to.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TextIO
from unittest import mock

import click
import pytest
from urifilter_redis.cli import main

#: Seconds that a command may take; only reached when something is wrong.
PATIENCE = 120

_PROGRAM = "python -m urifilter_redis.cli"


def start(*arguments: object, **options) -> subprocess.Popen[bytes]:
    """Start ``urifilter``; without options its streams are pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "urifilter_redis.cli", *map(str, arguments)]
    return subprocess.Popen(command, **(pipes | options))


def feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Give a command that runs something to read."""
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def run_process(*arguments: object, given: bytes = b"", code: int = 0, **options) -> tuple[bytes, str]:
    """Run ``urifilter`` to its end, as a process; check its exit code, and return stdout and stderr."""
    process = start(*arguments, **options)
    out, err = process.communicate(given, timeout=PATIENCE)
    return _checked(arguments, code, process.returncode, out or b"", err or b"")


def run(*arguments: object, code: int = 0, **options) -> tuple[bytes, str]:
    """Run ``urifilter`` as ``invoke`` does; check its exit code, and return stdout and stderr."""
    return _checked(arguments, code, *invoke(*arguments, **options))


def stderr_of(*arguments: object, **options) -> str:
    """Run ``urifilter`` as ``run`` does; check that it prints nothing on stdout, and return stderr."""
    out, err = run(*arguments, **options)
    assert out == b"", arguments
    return err


def json_of(*arguments: object, **options) -> Any:
    """Run ``urifilter`` as ``run`` does, with ``--json``; return what it prints on stdout."""
    return json.loads(run(*arguments, "--json", **options)[0])


def invoke(
    *arguments: object,
    given: bytes = b"",
    stdout: IO[bytes] | None = None,
    closed: Collection[int] = (),
    env: Mapping[str, str] = os.environ,
    cwd: Path | str = ".",
) -> tuple[int, bytes, bytes]:
    """Run ``urifilter`` in this process; return its exit code, stdout and stderr.

    ``stdout`` is a file for stdout, ``closed`` the numbers of standard streams that are closed when it begins.
    """
    with contextlib.ExitStack() as stack:
        stdin, out, err = (stack.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(3))
        stdin.write(given)
        stdin.seek(0)
        with (
            _streams([stdin, stdout or out, err], closed),
            _logging(),
            mock.patch.dict(os.environ, {**env}, clear=True),
            contextlib.chdir(cwd),
            pytest.raises(SystemExit) as ended,
        ):
            main([*map(str, arguments)], prog_name=_PROGRAM)
        return int(ended.value.code or 0), _whole(out), _whole(err)


def urls(count: int) -> list[bytes]:
    """Return lines of a usual length, all different."""
    return [b"https://example.com/some/longer/path/%d" % number for number in range(count)]


def joined(lines: Iterable[bytes]) -> bytes:
    """Return lines as they stand in a file."""
    return b"".join(line + b"\n" for line in lines)


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands, with the words that name them."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def _checked(arguments, wanted: int, code: int, out: bytes, err: bytes) -> tuple[bytes, str]:
    text = err.decode()
    assert code == wanted, (arguments, text)
    assert "Traceback" not in text
    return out, text


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def _streams(files: list[IO[bytes]], closed: Collection[int]) -> Iterator[None]:
    """Let files be the standard streams, as an interpreter has them when it begins: the descriptors, and ``sys``'s."""
    before = sys.stdin, sys.stdout, sys.stderr
    kept = [os.dup(number) for number in range(3)]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (None if number in closed else _opened(number) for number in range(3))
        for number in closed:
            os.close(number)
        yield
        sys.stdout.flush()  # as an interpreter does at its end
        sys.stderr.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _opened(number: int) -> TextIO:
    if number == 2:
        return open(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    return open(number, "rw"[number], closefd=False)


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Log as where nobody has set anything up; put back what is there, and what ``worker`` changes."""
    root, top = logging.getLogger(), logging.getLogger("urifilter_redis")
    before = [(logger, logger.handlers, logger.level) for logger in (root, top)]
    try:
        for logger in (root, top):
            logger.handlers = []
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, handlers, level in before:
            for handler in logger.handlers:
                handler.close()
            logger.handlers = handlers
            logger.setLevel(level)
