"""Serving: one process, or a parent with workers that share its socket and are replaced when they die."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from urifilter_redis.errors import UriFilterError
from urifilter_redis.service import BEGAN_VARIABLE, FOLDER_VARIABLE
from urifilter_redis.service.logs import configuration, reopen, reopen_on_hangup
from urifilter_redis.service.protocol import Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from urifilter_redis.service.settings import ServiceSettings

__all__ = ["held_signals", "listen", "serve"]

_STOPPING = (signal.SIGTERM, signal.SIGINT)

#: Connections that may wait to be accepted.
BACKLOG = 2048

#: Seconds for which a connection may be idle; clients and load balancers close theirs earlier.
KEEP_ALIVE = 75


def listen(host: str, port: int) -> socket.socket:
    """Bind the service's socket.

    Raises:
        OSError: the address is taken, or belongs to another machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


@contextlib.contextmanager
def held_signals() -> Iterator[Callable[[], None]]:
    """Hold SIGTERM and SIGINT back until the function is called that this yields.

    Once the server has stopped, both signals do nothing until this context ends.
    """
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in _STOPPING}

    def release() -> None:
        for number in held:
            signal.raise_signal(number)

    try:
        yield release
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """A server that lets held signals through once its own handlers are in place."""

    def __init__(self, config: uvicorn.Config, release: Callable[[], None]) -> None:
        super().__init__(config)
        self._release = release

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Let held signals through, and start."""
        self._release()
        await super().startup(sockets)


class _Parent(Multiprocess):
    """The parent of workers."""

    def __init__(self, config: uvicorn.Config, bound: socket.socket, on_hangup: Callable[[], None] | None) -> None:
        super().__init__(config, sockets=[bound])
        self._on_hangup = on_hangup

    def handle_hup(self) -> None:
        """Make the log file anew, in workers too; if there is no log file, replace the workers, as uvicorn does."""
        if self._on_hangup is None:
            super().handle_hup()
            return
        self._on_hangup()
        for worker in self.processes:
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGHUP)


def serve(
    settings: ServiceSettings,
    bound: socket.socket,
    release: Callable[[], None],
    log_file: Path | None = None,
    *,
    daemon: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; then answer the requests under way, and refuse new connections.

    Args:
        settings: the service's settings.
        bound: the socket to serve on.
        release: called once the server's signal handlers are in place; see ``held_signals``.
        log_file: the file for the log, made anew on SIGHUP; None: stderr.
        daemon: whether stdout and stderr go to the log file, too.

    Raises:
        UriFilterError: the service did not start.
    """
    with tempfile.TemporaryDirectory(prefix="urifilter-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        os.environ[BEGAN_VARIABLE] = str(time.time())
        config = _config(settings, log_file, daemon=daemon)
        if settings.workers > 1:
            again = functools.partial(reopen, log_file, daemon) if log_file is not None else None
            supervisor = _Parent(config, bound, again)
            release()
            supervisor.run()
            failed = any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes)
        else:
            server = _Server(config, release)
            server.run(sockets=[bound])
            failed = not server.started
    if failed:
        raise UriFilterError("the service did not start: its log says why")


def _config(settings: ServiceSettings, log_file: Path | None, *, daemon: bool) -> uvicorn.Config:
    return uvicorn.Config(
        functools.partial(_application, settings, log_file, daemon),
        factory=True,
        http=Protocol,
        ws="none",
        lifespan="on",
        workers=settings.workers,
        log_config=configuration(settings.log_format, log_file),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=round(settings.limits.seconds) + 5,
    )


def _application(settings: ServiceSettings, log_file: Path | None, daemon: bool) -> object:  # noqa: FBT001 - by partial
    if log_file is not None:
        reopen_on_hangup(log_file, daemon)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from urifilter_redis.service.app import make_app  # noqa: PLC0415 - metrics look for their folder when imported

    Protocol.head_seconds = settings.limits.seconds
    return make_app(settings)


def _end_with(parent: BaseProcess) -> None:
    """Stop this worker when its parent ends, however it ends: an orphan would run for ever."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
