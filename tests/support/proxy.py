"""A proxy that loses, delays and repeats the commands of Redis clients, or the requests of HTTP clients.

It reads whole commands and whole replies (RESP2, HTTP), so that it can lose a reply after its command has surely run,
or deliver a command after its own retry and after the slot's next call.
"""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import threading
from collections.abc import Callable
from enum import Enum

PATIENCE = 30  # s


class Fault(Enum):
    PASS = "pass"
    CUT_BEFORE = "cut before"  # the connection breaks, the command is lost
    CUT_AFTER = "cut after"  # the command has run, the connection breaks before the reply
    DELAY = "delay"  # the connection breaks, the command arrives later
    DUPLICATE = "duplicate"  # it runs and is answered, and arrives once more later
    HANG = "hang"  # it runs and no reply ever comes


Plan = Callable[[list[bytes]], Fault]


def never(command: list[bytes]) -> Fault:
    return Fault.PASS


def first(*faults: Fault) -> Plan:
    """The next EVALSHAs, but for the probe at opening, get these faults, those after them none."""
    left = iter(faults)
    return lambda _: next(left, Fault.PASS)


def at_random(seed: int, share: float, kinds=(Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DELAY, Fault.DUPLICATE)) -> Plan:
    """So many of the EVALSHAs get one of these faults."""
    dice = random.Random(seed)
    return lambda _: dice.choice(kinds) if dice.random() < share else Fault.PASS


class _Reader:
    """Reads RESP frames and keeps their bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")
        self.raw = b""

    def close(self) -> None:
        self._file.close()

    def frame(self) -> object:
        """Return the next frame; ``raw`` is it as it was sent. EOFError at the end."""
        self.raw = b""
        return self._frame()

    def _frame(self) -> object:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        self.raw += line
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b"*":
            return [self._frame() for _ in range(max(int(rest), 0))]
        return kind + rest

    def _bulk(self, length: int) -> bytes | None:
        if length < 0:
            return None
        data = self._file.read(length + 2)
        if len(data) < length + 2:
            raise EOFError
        self.raw += data
        return data[:-2]


class _HttpReader(_Reader):
    """Reads HTTP messages with a Content-Length, and keeps their bytes."""

    def _frame(self) -> list[bytes]:
        lines, length = [], 0
        while not lines or lines[-1] != b"\r\n":
            lines.append(self._file.readline())
            if not lines[-1].endswith(b"\r\n"):
                raise EOFError
            name, _, value = lines[-1].partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = self._file.read(length)
        if len(body) < length:
            raise EOFError
        self.raw = b"".join(lines) + body
        return [lines[0].rstrip(), body]


class Proxy:
    """Stands between clients and a server; a context manager.

    ``late_after``: held commands are delivered after so many more commands; ``release`` delivers them at once.
    ``answered`` counts the server's replies.
    """

    scheme, reader = "redis", _Reader

    def __init__(self, port: int, plan: Plan = never, late_after: int | None = None) -> None:
        self.plan = plan
        self.counts: collections.Counter[Fault] = collections.Counter()
        self.late_replies: list[tuple[list[bytes], object]] = []
        self._server = ("127.0.0.1", port)
        self._late_after = late_after
        self._held: list[tuple[int, list[bytes], bytes]] = []
        self._lock = threading.Lock()
        self.answered = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.url = f"{self.scheme}://127.0.0.1:{self.port}{'/0' if self.scheme == 'redis' else ''}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # some systems have it for connections alone
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that waits for the next one
        self._listener.close()
        self.release()

    def release(self) -> None:
        """Deliver all that is held, and wait until it was answered."""
        with self._lock:
            held, self._held = self._held, []
        self._deliver(held)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(EOFError, OSError), socket.create_connection(self._server) as server:
            server.settimeout(PATIENCE)
            with (
                contextlib.closing(self.reader(client)) as commands,
                contextlib.closing(self.reader(server)) as replies,
            ):
                while self._one(client, server, commands, replies):
                    self._deliver(self._due())

    def _one(self, client, server, commands: _Reader, replies: _Reader) -> bool:
        """Handle one command; False: the connection is to be broken."""
        command = commands.frame()
        fault = self._fault(command)
        if fault in {Fault.DELAY, Fault.DUPLICATE}:
            with self._lock:
                self._held.append((self.answered, command, commands.raw))
        if fault in {Fault.CUT_BEFORE, Fault.DELAY}:
            return False
        server.sendall(commands.raw)
        replies.frame()
        with self._lock:
            self.answered += 1
        if fault is Fault.CUT_AFTER:
            return False
        if fault is Fault.HANG:
            client.recv(1)  # until the client gives up
            return False
        self._before_reply(command)
        client.sendall(self._reply_to(command, replies.raw))
        return True

    def _reply_to(self, command: list[bytes], raw: bytes) -> bytes:
        """Return the reply that the client gets for the server's."""
        return raw

    def _before_reply(self, command: list[bytes]) -> None:
        """Do nothing: the command has run, and its client does not know it yet."""

    def _fault(self, command: list[bytes]) -> Fault:
        if not self._concerned(command):
            return Fault.PASS
        with self._lock:
            fault = self.plan(command)
            self.counts[fault] += 1
        return fault

    def _concerned(self, command: list[bytes]) -> bool:
        return command[0].upper() == b"EVALSHA" and not command[3].endswith(b":merging_1")  # the probe of rights

    def _due(self) -> list[tuple[int, list[bytes], bytes]]:
        if self._late_after is None:
            return []
        with self._lock:
            due = [held for held in self._held if self.answered - held[0] >= self._late_after]
            self._held = [held for held in self._held if self.answered - held[0] < self._late_after]
        return due

    def _deliver(self, held: list[tuple[int, list[bytes], bytes]]) -> None:
        for _, command, raw in held:
            with socket.create_connection(self._server) as late:
                late.settimeout(PATIENCE)
                late.sendall(raw)
                with contextlib.closing(self.reader(late)) as replies:
                    self.late_replies.append((command, replies.frame()))


class Repeating(Proxy):
    """After each EVALSHA, before its reply, some of the earlier ones arrive again, each time others, in their order.

    Args:
        port: the server's.
        seed: draws how likely each time is, and which ones come.
    """

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(port)
        self._dice = random.Random(seed)
        self._earlier: list[tuple[int, list[bytes], bytes]] = []

    def forget(self) -> None:
        """Let none of the commands so far come again."""
        self._earlier.clear()

    def _before_reply(self, command: list[bytes]) -> None:
        if self._concerned(command):
            share = self._dice.choice((0, 0.05, 0.3, 1))
            self._deliver([each for each in self._earlier if self._dice.random() < share])
            self._earlier.append((0, command, _frame_of(command)))


def _frame_of(command: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(each), each) for each in command)


class HttpProxy(Proxy):
    """The same between clients and the HTTP service; its faults are for POST requests."""

    scheme, reader = "http", _HttpReader

    def _concerned(self, command: list[bytes]) -> bool:
        return command[0].startswith(b"POST ")
