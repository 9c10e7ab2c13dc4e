"""Serving: one process, or a parent with workers that share its socket and are replaced when they die.

On SIGHUP some settings are read again. With several workers the parent reads them, and tells its workers by a file and
a SIGHUP. Every process takes a wrong file for none, and keeps the settings that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, get_type_hints

import uvicorn
from pydantic import TypeAdapter
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from urifilter_redis.errors import UriFilterError
from urifilter_redis.service import BEGAN_VARIABLE, FOLDER_VARIABLE
from urifilter_redis.service.folders import counting, give_back, own_folder, reserve
from urifilter_redis.service.logs import configuration, on_hangup, reopen
from urifilter_redis.service.protocol import Protocol
from urifilter_redis.service.settings import ServiceSettings

_STOPPING = (signal.SIGTERM, signal.SIGINT)

#: Connections that may wait to be accepted.
BACKLOG = 2048

#: Seconds in which a worker must answer its parent, or it is replaced; on an overloaded machine that takes some.
WORKER_PATIENCE = 15

#: Seconds for which a connection may be idle; clients and load balancers close theirs earlier.
KEEP_ALIVE = 75


log = logging.getLogger("urifilter_redis.service")

#: The settings that change while the service runs; all others wait for a restart.
LIVE = ("log_requests", "tokens", "trusted_proxies")

#: The errors of settings that are wrong, or cannot be read.
_WRONG = (ValueError, OSError, UriFilterError)
_FILE = "settings.json"

#: The form of each of them.
_KINDS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(get_type_hints(ServiceSettings)[name]) for name in LIVE}


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

    def __init__(  # noqa: PLR0913, PLR0917 - what a SIGHUP needs
        self,
        config: uvicorn.Config,
        bound: socket.socket,
        settings: ServiceSettings,
        reopen_log: Callable[[], None],
        again: Callable[[ServiceSettings], ServiceSettings | None],
        make: Callable[[ServiceSettings], object],
    ) -> None:
        super().__init__(config, sockets=[bound])
        self._settings, self._reopen_log, self._again, self._make = settings, reopen_log, again, make
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
            with counting():
                from urifilter_redis.service import metrics  # noqa: PLC0415 - it looks for its folder when imported

            for _ in range(died):
                metrics.note_restart()
            for process in gone:
                metrics.forget_worker(process)
                give_back(process)

    def handle_hup(self) -> None:
        """Make the log file anew, and read the settings again; in workers too.

        New settings are written down for the workers, and for those to come.
        """
        self._reopen_log()
        new = self._again(self._settings)
        if new is not None and publish(new):
            self._settings, self.config.app = new, functools.partial(self._make, new)
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

    ``release`` of ``held_signals`` is called once the server's signal handlers are in place. On SIGHUP ``read`` reads
    the settings again, and the log file is made anew; as a daemon stdout and stderr go there, too.

    Raises:
        UriFilterError: the service did not start.
    """
    with own_folder() as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            reserve()
        except OSError as error:
            raise UriFilterError(f"the service did not start: no room for its metrics in {folder}: {error}") from error
        os.environ[BEGAN_VARIABLE] = str(time.time())
        reopen_log = functools.partial(reopen, log_file, daemon) if log_file is not None else _nothing
        again = functools.partial(read_again, read=read)
        if settings.workers > 1:
            make = functools.partial(_application, reopen_log, published)
            config = _config(settings, log_file, functools.partial(make, settings))
            supervisor = _Parent(config, bound, settings, reopen_log, again, make)
            release()
            supervisor.run()
            failed = any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes)
        else:
            factory = functools.partial(_application, reopen_log, again, settings)
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


def _application(
    reopen_log: Callable[[], None],
    again: Callable[[ServiceSettings], ServiceSettings | None],
    settings: ServiceSettings,
) -> object:
    """Make the application of this process; SIGHUP makes its log anew, and gives it the settings of ``again``."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with counting():
        from urifilter_redis.service.app import make_app  # noqa: PLC0415 - metrics look for their folder when imported
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
    return make_app(service)


def _end_with(parent: BaseProcess) -> None:
    """Stop this worker when its parent ends, however it ends: an orphan would run for ever."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def read_again(old: ServiceSettings, read: Callable[[], ServiceSettings]) -> ServiceSettings | None:
    """Return the settings that the service is to have, and log the outcome; None: the old ones stay."""
    try:
        new = read()
        found = merged(old, new)
    except _WRONG as error:
        text = "; ".join(line.strip() for line in str(error).splitlines())
        log.error("SIGHUP: the old settings stay: %s", text)  # noqa: TRY400 - the text says it all
        return None
    changed = [name for name in LIVE if getattr(found, name) != getattr(old, name)]
    log.info("SIGHUP: the settings were read again; changed: %s", ", ".join(changed) or "nothing")
    waiting = [name for name in sorted(ServiceSettings.model_fields) if getattr(new, name) != getattr(found, name)]
    if waiting:
        log.warning("SIGHUP: these settings change only with a restart: %s", ", ".join(waiting))
    return found


def merged(old: ServiceSettings, new: ServiceSettings) -> ServiceSettings:
    """Return the settings of a running service with those that may change taken from others.

    Raises:
        ValueError: the first token would come, or the last one go, and with it the rules about who may ask.
    """
    if bool(old.tokens) != bool(new.tokens):
        text = "has no tokens, so the first one" if new.tokens else "has tokens, so going without any"
        raise ValueError(f"tokens: the service {text} needs a restart")
    return old.model_copy(update={name: getattr(new, name) for name in LIVE})


def publish(settings: ServiceSettings) -> bool:
    """Write the settings that may change down for the workers; return whether that has worked."""
    file = _published_file()
    part = file.with_suffix(".part")
    try:
        part.write_text(settings.model_dump_json(include=set(LIVE)))
        part.replace(file)
    except OSError as error:
        log.error("SIGHUP: the old settings stay: %s", error)  # noqa: TRY400 - likewise
        return False
    return True


def published(old: ServiceSettings) -> ServiceSettings | None:
    """Return the settings that the parent has written down; None: those that the worker has stay."""
    try:
        found = json.loads(_published_file().read_bytes())
    except FileNotFoundError:  # nothing was read again, and SIGHUP came for the log
        return None
    new = old.model_copy(update={name: kind.validate_python(found[name]) for name, kind in _KINDS.items()})
    if new == old:
        return None
    log.info("SIGHUP: the new settings are in use")
    return new


def _published_file() -> Path:
    return Path(os.environ[FOLDER_VARIABLE]) / _FILE
