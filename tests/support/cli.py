"""The command line as a user runs it: as a process.

A process that is only looked at when it has ended is forked by one that has imported everything (``python cli.py
SOCKET``, for each worker one): it takes a third of a second less.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Seconds that a command may take; only reached when something is wrong.
PATIENCE = 120


def start(*arguments: object, **options) -> subprocess.Popen[bytes]:
    """Start ``urifilter``; without options its streams are pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "urifilter_redis.cli", *map(str, arguments)]
    return subprocess.Popen(command, **(pipes | options))


def run(*arguments: object, given: bytes = b"", code: int = 0, **options) -> tuple[bytes, str]:
    """Run ``urifilter`` to its end; check its exit code, and return stdout and stderr."""
    if options:
        process = start(*arguments, **options)
        out, err = process.communicate(given, timeout=PATIENCE)
        ended = process.returncode
    else:
        out, err, ended = _prepared().run([*map(str, arguments)], given)
    assert code == ended, (arguments, err)
    text = (err or b"").decode()
    assert "Traceback" not in text
    return out or b"", text


@functools.cache
def _prepared() -> _Prepared:
    return _Prepared()


class _Prepared:
    """The process that forks."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="uf-")
        self._address = str(Path(self._folder) / "s")
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._process.stdout.readline() == b"ready\n"
        atexit.register(self.stop)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, arguments: list[str], given: bytes) -> tuple[bytes, bytes, int]:
        os.umask(umask := os.umask(0))
        inherited = {"cwd": str(Path.cwd()), "umask": umask, "environment": dict(os.environ)}
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        with socket.socket(socket.AF_UNIX) as connection, ThreadPoolExecutor(3) as threads:
            connection.settimeout(PATIENCE)
            connection.connect(self._address)
            socket.send_fds(connection, [b"f"], theirs)
            connection.sendall(json.dumps({"arguments": arguments} | inherited).encode() + b"\n")
            for each in theirs:
                os.close(each)
            threads.submit(_write, pipes[0][1], given)
            out, err = (threads.submit(_read, pipe[0]) for pipe in pipes[1:])
            with connection.makefile("rb") as answer:
                ended = int(answer.readline())
            return out.result(), err.result(), ended


def _write(descriptor: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def _serve(address: str) -> None:
    """Answer each connection in a child; return in a child of that, which is the one to run the command."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if os.fork() == 0:
                break
            connection.close()
    with connection:
        _, descriptors, *_ = socket.recv_fds(connection, 1, 3)
        with connection.makefile("rb") as reader:
            request = json.loads(reader.readline())
        process = os.fork()
        if process != 0:
            for each in descriptors:
                os.close(each)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            connection.sendall(b"%d\n" % status)
            os._exit(0)
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]


def _load():
    """Import all that any command would, as it is loaded and as it runs; return the group of commands."""
    from urifilter_redis.cli import main

    from urifilter_redis.archive.homes import folder, mongodb  # noqa: F401
    from urifilter_redis.transport import embedded  # noqa: F401

    list(main.commands.values())  # a command's module is loaded when the command is asked for
    return main


if __name__ == "__main__":
    main = _load()
    gc.freeze()  # or the children would copy all of it, as they collect
    _serve(sys.argv[1])
    main(prog_name="python -m urifilter_redis.cli")
