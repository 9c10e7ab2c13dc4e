"""HTTP/1.1 as uvicorn speaks it, with limits for heads and trailers, and answers in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

__all__ = ["HEAD_BYTES", "Protocol"]

#: Bytes of the head of a request, and of the trailers behind its body, which are left out.
HEAD_BYTES = 1 << 16


class Protocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        head_seconds: in which the head of a request must arrive, from its first byte or, on a new connection, from the
            start.
    """

    head_seconds = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._head: asyncio.TimerHandle | None = None
        self._heads = self._head_size = 0
        self._begun = False
        self._no_http = ""
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._got_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; refuse a head that does not end, and leave nobody waiting who sends what is no request."""
        if self._no_http:
            return
        waiting, heads = self._head is not None, self._heads
        super().data_received(data)
        if self._head is not None:
            only_this = waiting and heads == self._heads  # and not the end of another request before it
            self._head_size += len(data) if only_this else 0
            if self._head_size > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
        elif self._is_idle():  # uvicorn has ended its own wait
            self._await_head()

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        self._await_head()
        self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; leave out what comes behind the body."""
        if self._begun:
            super().on_header(name, value)
            return
        self._head_size += len(name) + len(value)
        if self._head_size > HEAD_BYTES:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin the request."""
        self._heads += 1
        self._got_head()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or with what came behind the last."""
        super().on_response_complete()
        if self._no_http and self._is_idle():
            super().send_400_response(self._no_http)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, behind the answers to what came before it."""
        if self._is_idle() or self.cycle.more_body:
            super().send_400_response(msg)
        else:
            self._no_http = msg

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: clients that ask for HTTP/2 do so in every request."""

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self._got_head()
        self._head_size = 0
        self._head = self.loop.call_later(self.head_seconds, self._refuse, b"408 Request Timeout")

    def _got_head(self) -> None:
        self._begun = False
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _refuse(self, status: bytes) -> None:
        """Close the connection, once no answer is under way on it; if a head was begun, with an answer."""
        if not self._is_idle():
            self._head = self.loop.call_later(self.head_seconds, self._refuse, status)
            return
        if self._begun and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self._got_head()
        self.transport.close()
