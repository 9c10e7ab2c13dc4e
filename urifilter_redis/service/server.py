"""Serving: one process, or a parent with workers that share its socket and are replaced when they die."""

from __future__ import annotations

import asyncio
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
from urifilter_redis.service.logs import configuration, reopen
from urifilter_redis.service.protocol import Protocol
from urifilter_redis.service.reloading import on_hangup, publish, published, read_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from urifilter_redis.service.settings import ServiceSettings

__all__ = ["held_signals", "listen", "serve"]

_STOPPING = (signal.SIGTERM, signal.SIGINT)

#: Connections that may wait to be accepted.
BACKLOG = 2048

#: Seconds in which a worker must answer its parent, or it is replaced; on an overloaded machine that takes some.
WORKER_PATIENCE = 15

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

    Once the server has stopped, both signals do nothing until this context ends. SIGHUP is blocked, for child processes
    too, until each process is ready for it.
    """
    held: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in _STOPPING}

    def release() -> None:
        for number in held:
            signal.raise_signal(number)

    try:
        yield release
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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
    """The parent of workers.

    SIGHUP stays blocked here, so that a worker is born with it blocked, and lets it through once it has its handler.
    """

    def __init__(self, config: uvicorn.Config, bound: socket.socket, again: Callable[[uvicorn.Config], None]) -> None:
        super().__init__(config, sockets=[bound])
        self._again = again
        self._running: set[int] = set()

    def handle_signals(self) -> None:
        """Act on SIGHUP, and on the signals that uvicorn knows."""
        if signal.SIGHUP in signal.sigpending():
            signal.sigwait({signal.SIGHUP})
            self.handle_hup()
        super().handle_signals()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died, and tell the metrics."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        died = sum(old is not new for old, new in zip(before, self.processes, strict=False))
        running = {worker.pid for worker in self.processes if worker.pid is not None}
        gone, self._running = self._running - running, running
        if died or gone:
            from urifilter_redis.service import metrics  # noqa: PLC0415 - metrics look for their folder when imported

            for _ in range(died):
                metrics.note_restart()
            for process in gone:
                metrics.forget_worker(process)

    def handle_hup(self) -> None:
        """Make the log file anew, and read the settings again; in workers too."""
        self._again(self.config)
        for worker in self.processes:
            if worker.pid is not None and worker.process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGHUP)


def serve(  # noqa: PLR0913 - all that it is started with
    settings: ServiceSettings,
    bound: socket.socket,
    release: Callable[[], None],
    read: Callable[[], ServiceSettings],
    log_file: Path | None = None,
    *,
    daemon: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; then answer the requests under way, and refuse new connections.

    Args:
        settings: the service's settings.
        bound: the socket to serve on.
        release: called once the server's signal handlers are in place; see ``held_signals``.
        read: reads the settings again, on SIGHUP.
        log_file: the file for the log, made anew on SIGHUP; None: stderr.
        daemon: whether stdout and stderr go to the log file, too.

    Raises:
        UriFilterError: the service did not start.
    """
    with tempfile.TemporaryDirectory(prefix="urifilter-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        os.environ[BEGAN_VARIABLE] = str(time.time())
        reopen_log = functools.partial(reopen, log_file, daemon) if log_file is not None else _nothing
        if settings.workers > 1:
            make = functools.partial(_application, reopen_log, published)
            config = _config(settings, log_file, functools.partial(make, settings))
            supervisor = _Parent(config, bound, _rereading(settings, reopen_log, read, make))
            release()
            supervisor.run()
            failed = any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes)
        else:
            factory = functools.partial(_application, reopen_log, functools.partial(read_again, read=read), settings)
            server = _Server(_config(settings, log_file, factory), release)
            server.run(sockets=[bound])
            failed = not server.started
    if failed:
        raise UriFilterError("the service did not start: its log says why")


def _config(settings: ServiceSettings, log_file: Path | None, factory: Callable[[], object]) -> uvicorn.Config:
    return uvicorn.Config(
        factory,
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
        timeout_worker_healthcheck=WORKER_PATIENCE,
    )


def _nothing() -> None:
    """Reopen no log: it is on stderr."""


def _rereading(
    settings: ServiceSettings,
    reopen_log: Callable[[], None],
    read: Callable[[], ServiceSettings],
    make: Callable[[ServiceSettings], object],
) -> Callable[[uvicorn.Config], None]:
    """Return the parent's part of a SIGHUP: new settings are written down for its workers, and for those to come."""
    had = settings

    def again(config: uvicorn.Config) -> None:
        nonlocal had
        reopen_log()
        new = read_again(had, read)
        if new is not None and publish(new):
            had, config.app = new, functools.partial(make, new)

    return again


def _application(
    reopen_log: Callable[[], None],
    again: Callable[[ServiceSettings], ServiceSettings | None],
    settings: ServiceSettings,
) -> object:
    """Make the application of this process; SIGHUP makes its log anew, and gives it the settings of ``again``."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    from urifilter_redis.service.app import make_app_of  # noqa: PLC0415 - metrics look for their folder when imported
    from urifilter_redis.service.endpoints import Service  # noqa: PLC0415 - likewise

    Protocol.head_seconds = settings.limits.seconds
    service, loop = Service(settings), asyncio.get_running_loop()

    def hang_up() -> None:
        reopen_log()
        new = again(service.settings)
        if new is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
                loop.call_soon_threadsafe(service.renew, new)

    on_hangup(hang_up)
    return make_app_of(service)


def _end_with(parent: BaseProcess) -> None:
    """Stop this worker when its parent ends, however it ends: an orphan would run for ever."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
