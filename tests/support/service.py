"""The HTTP service as a user runs it, as a process; and a connection to it on which every byte is the test's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import cli
from support.servers import PATIENCE, state, suspend, wait_until
from urifilter_redis import UriFilter
from urifilter_redis.http_api import DEFAULT_PATH
from urifilter_redis.service import tokens

_LISTENS = re.compile(r"^listens at http://127\.0\.0\.1:(\d+)$", re.MULTILINE)

#: A small filter of one shard, and the same as the settings of a service.
NEWS = {"capacity": 1000, "error_rate": 1e-8, "seed": 1}
NEWS_TABLE = "[filters.news]\ncapacity = 1000\nerror_rate = 1e-8\nseed = 1\n"


def make(url: str, name: str = "news", items=(), **more: Any) -> None:
    """Make a small filter, and insert items; one that has an archive is written to it."""
    with UriFilter.create(name, redis=url, **NEWS, **more) as made:
        made.insert_many(items)
        if "archive" in more:
            made.checkpoint()


def known(name: str, secret: str, access: str = "read", filters: Sequence[str] = ("*",)) -> str:
    """Return the settings by which a service knows a token."""
    return f"\n{tokens.Token(name, tokens.digest(secret), tuple(filters), access).toml()}\n"


class Service:
    """``urifilter serve`` on a free port, ready to answer; a context manager that stops it and checks its exit code.

    ``arguments`` are flags (the last of a kind counts), ``settings`` the text of a TOML file, ``env`` more of its
    environment, in which nothing of the user's settings is.
    """

    def __init__(self, redis_url: str | None, *arguments: object, settings: str = "", **env: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="uf-serve-"))
        self._log: str | None = None
        said: list[object] = ["--host", "127.0.0.1", "--port", "0"]
        if redis_url is not None:
            said += ["--redis", redis_url]
        if settings:
            file = self.folder / "settings.toml"
            file.write_text(settings)
            said += ["--settings", file]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("URIFILTER_")}
        data = {"URIFILTER_DATA_DIR": str(self.folder / "data"), "PYTHONSAFEPATH": "1"}
        with (self.folder / "log").open("wb") as log:  # a pipe that nobody reads would fill up
            self.process = cli.start(
                "serve", *said, *arguments, env=inherited | data | env, stdout=log, stderr=log, start_new_session=True
            )
        try:
            found = wait_until(self._listens, "the service does not listen")
            self.port, self.path = int(found[1]), DEFAULT_PATH
            self.url = f"http://127.0.0.1:{self.port}"
            wait_until(self._healthy, "the service does not answer")
        except BaseException as error:
            error.add_note(self.log())
            self.kill()
            raise

    def log(self) -> str:
        """Return what it has written to stderr and stdout; also after its end."""
        return (self.folder / "log").read_text(errors="replace") if self._log is None else self._log

    def raw(self, timeout: float = PATIENCE) -> Raw:
        """Connect to it."""
        return Raw(self.port, timeout)

    def stop(self) -> None:
        """Stop it by SIGTERM, check its exit code, and remove what is left; does nothing after ``kill``."""
        if self._log is not None:
            return
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(PATIENCE)
            assert code == 0, (code, self.log())
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL it and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self._log = self.log()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def _runs(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"the service has ended with {self.process.returncode}")

    def _listens(self) -> re.Match[str] | None:
        self._runs()
        return _LISTENS.search(self.log())

    def _healthy(self) -> bool:
        self._runs()
        with self.raw() as connection:
            connection.send(request("GET", "/healthz"))
            answer = connection.answer()
        return answer is not None and answer.status == 200


def workers(service: Service, count: int = 2) -> list[int]:
    """Return the workers, in the order of their start, when there have been so many and all take requests."""
    wait_until(lambda: service.log().count("Application startup complete") >= count, "the workers do not start")
    found = re.findall(r"Started server process \[(\d+)\]", service.log())
    assert len(found) == count
    return list(map(int, found))


def lives(process: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    return state(process) not in {"", "Z"}


def serving(service: Service) -> list[int]:
    """Return the workers that take requests, the newest last."""
    ready = re.findall(r" (\d+) INFO Application startup complete", service.log())
    return [process for process in map(int, ready) if lives(process)]


@contextlib.contextmanager
def alone(service: Service, worker: int) -> Iterator[None]:
    """Let one worker answer: the others, and the parent, which would end those that do not, are suspended."""
    begun = map(int, re.findall(r"server process \[(\d+)\]", service.log()))
    others = [each for each in (service.process.pid, *begun) if each != worker and lives(each)]
    try:
        suspend(*others)
        yield
    finally:
        for each in reversed(others):
            os.kill(each, signal.SIGCONT)


@dataclass(frozen=True)
class Answer:
    """A response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Raw:
    """One connection to a loopback port."""

    def __init__(self, port: int, timeout: float = PATIENCE) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> None:
        """Send no more, and go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def answer(self, *, head: bool = False) -> Answer | None:
        """Return the next response, None when the connection is at its end; ``head``: it answers a HEAD."""
        try:
            line = self._reader.readline()
        except ConnectionResetError:  # it was closed while there was more to read from us
            return None
        if not line:
            return None
        status = int(line.split(b" ")[1])
        headers: dict[str, str] = {}
        while (line := self._reader.readline()) not in {b"\r\n", b""}:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if head or status < 200:
            return Answer(status, headers, b"")
        if "content-length" not in headers:
            return Answer(status, headers, self._reader.read())
        return Answer(status, headers, self._reader.read(int(headers["content-length"])))

    def ask(self, data: bytes) -> Answer | None:
        """Send, and return the next response; it may be there, and the connection closed, before all is sent."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self.send(data)
        return self.answer()

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()


def ask(service: Service, method: str, path: str, content: object = None, token: str | None = None) -> Answer:
    """Ask over a connection of its own, with ``content`` as JSON."""
    body = None if content is None else json.dumps(content).encode()
    with service.raw() as connection:
        answer = connection.ask(request(method, path, body, Authorization=token and f"Bearer {token}"))
    assert answer is not None, service.log()
    return answer


def request(method: str, path: str, body: bytes | None = None, **headers: str | None) -> bytes:
    """Return the bytes of a request: ``Content_Type="…"`` names a header, None leaves out one that would be there."""
    wanted: dict[str, str | None] = {"Host": "127.0.0.1"}
    if body is not None:
        wanted |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    wanted |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}\r\n" for name, value in wanted.items() if value is not None]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + (body or b"")
