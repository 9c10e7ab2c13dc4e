"""HTTP/1.1 on uvicorn's parser, with limits for heads and trailers, and answers in the order of their requests.

This module overrides private parts of uvicorn: ``pyproject.toml`` names the newest uvicorn that it was tested with.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Sequence
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from urifilter_redis.http_api import write_json
from urifilter_redis.service.errors import ANSWER_HEADERS, Refusal
from urifilter_redis.service.logs import Seldom

#: Bytes that the head of a request may have, and the trailers behind its body, too.
HEAD_BYTES = 1 << 16

#: The log warns when only so many file descriptors are free.
FILES_LEFT = 10

log = logging.getLogger("urifilter_redis.service")
_seldom = Seldom()

#: Headers that say where a body ends.
_FRAMING = {b"content-length", b"transfer-encoding"}


def _wrong_in(headers: Sequence[tuple[bytes, bytes]], version: str) -> str:
    """Say what is wrong in a head that a proxy may read otherwise; empty: nothing is."""
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return "a request names one Host"
    if b"transfer-encoding" in names:
        codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
        if codings != [b"chunked"]:
            return "Transfer-Encoding is chunked alone: send the body as it is, not compressed"
    return ""


def _check_files(transport: asyncio.Transport) -> None:
    """Log when file descriptors run out.

    A new connection gets the lowest free descriptor, so a high one means that few are free. Without one a connection
    waits unseen.
    """
    taken = transport.get_extra_info("socket").fileno()
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and taken >= most - FILES_LEFT and _seldom.passes():
        log.error(
            "out of file descriptors, so connections are lost: raise the limit of %d (ulimit -n, LimitNOFILE)", most
        )


class _Parser(httptools.HttpRequestParser):
    """Reads requests; a request that asks for another protocol is read as if it did not, with its body.

    httptools takes the bytes behind such a head for the other protocol. So the parser is given a second head, which
    announces the same body and asks for no other protocol. Then it goes on with the body. Behind the head of the last
    request of a connection it would read no more: there another parser takes the second head.
    """

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        """Parse bytes."""
        while data:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                head, data = self._protocol.head_again(), data[upgrade.args[0] :]
                if head and not self.should_keep_alive():
                    self._protocol.parser = _Parser(self._protocol)
                    self._protocol.parser.feed_data(head + data)
                    return
                data = head + data
            else:
                return


class _Joining:
    """A transport that sends together whatever is written in one turn of the event loop: a head and its body.

    uvloop sends each write at once, and that system call is a twentieth of the work of a small request.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():  # the client may have gone in this turn
            self._transport.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """One connection."""

    #: The time for the head of a request to arrive, from its first byte; on a new connection from the start.
    head_seconds = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(_Joining(transport, self.loop))  # type: ignore[arg-type]
        LOAD.server = self.server_state
        _check_files(transport)
        self.parser = _Parser(self)
        self._asks_upgrade = self._again = False
        self._head: asyncio.TimerHandle | None = None
        self._heads = self._head_size = 0
        self._begun = False
        self._no_http = self._wrong = ""
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._got_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse a head that does not end, and answer input that is not HTTP."""
        if self._no_http:
            return
        waiting, heads = self._head is not None, self._heads
        super().data_received(data)
        if self._head is not None:
            only_this = waiting and heads == self._heads  # and not the end of another request before it
            self._head_size += len(data) if only_this else 0
            if self._head_size > HEAD_BYTES:
                self._refuse("head_too_large")
        elif self._is_idle():  # uvicorn has just ended its own wait
            self._await_head()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Go on while answers are due: a client that has stopped sending may still read."""
        if self._is_idle() or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def head_again(self) -> bytes:
        """Return a second head, for the body of a request that asks for another protocol; empty if there is no body."""
        framing = [name + b": " + value + b"\r\n" for name, value in self.headers if name in _FRAMING]
        if framing and not self.parser.should_keep_alive():
            framing.append(b"Connection: close\r\n")
        self._asks_upgrade, self._again = False, bool(framing)
        return b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"]) if framing else b""

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        if self._again:
            return
        super().on_message_begin()
        self._await_head()
        self._begun = True

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        if not self._again:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers, which come behind the body, are left out."""
        if self._again:
            return
        if self._begun:
            super().on_header(name, value)
            return
        self._head_size += len(name) + len(value)
        if self._head_size > HEAD_BYTES:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin the request."""
        if self._again:
            self._again = False
            return
        self._heads += 1
        self._got_head()
        self._wrong = _wrong_in(self.headers, self.parser.get_http_version())
        if self._wrong:
            raise ValueError(self._wrong)  # for the parser, which ends with an error: see send_400_response
        self._asks_upgrade = self.parser.should_upgrade() and any(name in _FRAMING for name, _ in self.headers)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request, unless its body is still to come."""
        if not self._asks_upgrade:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or refuse the bytes behind the last one."""
        super().on_response_complete()
        if self._no_http and self._is_idle():
            self._end("bad_http", self._no_http)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, after the answers to the requests before them."""
        if self._is_idle() or self.cycle.more_body:
            self._end("bad_http", self._wrong or msg)
        else:
            self._no_http = self._wrong or msg

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self._got_head()
        self._head_size = 0
        self._head = self.loop.call_later(self.head_seconds, self._refuse, "too_slow")

    def _got_head(self) -> None:
        self._begun = False
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _refuse(self, code: str) -> None:
        """Close the connection once no answer is under way on it; if a head was begun, answer with an error first."""
        if not self._is_idle():
            self._head = self.loop.call_later(self.head_seconds, self._refuse, code)
            return
        begun = self._begun
        self._got_head()
        if begun and not self.transport.is_closing():
            self._end(code, f"a request's head may have {HEAD_BYTES:,} bytes, and {self.head_seconds:g} s to arrive")
        else:
            self.transport.close()

    def _end(self, code: str, text: str) -> None:
        """Answer with an error, and close the connection."""
        refusal = Refusal(code, text)
        body = write_json(refusal.content)
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **ANSWER_HEADERS,
        }
        lines = [f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}", *map(": ".join, headers.items()), "", ""]
        self.transport.write("\r\n".join(lines).encode() + body)
        self.transport.close()


class Load:
    """Connections and requests of one worker; uvicorn counts all but those that wait for others of their token."""

    def __init__(self) -> None:
        self.server: ServerState | None = None  # None before the first connection
        self.waiting = 0

    @property
    def connections(self) -> int:
        """The open connections of clients."""
        return 0 if self.server is None else len(self.server.connections)

    @property
    def in_flight(self) -> int:
        """The requests that are not answered yet, those that wait included."""
        return 0 if self.server is None else len(self.server.tasks)


#: The load of this process.
LOAD = Load()
