"""HTTP/1.1 as uvicorn speaks it, and limits for the head of a request, which uvicorn leaves open."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HEAD_BYTES", "HEAD_SECONDS", "Protocol"]

#: Seconds in which the head of a request must arrive, from its first byte or, on a new connection, from the start.
HEAD_SECONDS = 10.0

#: Bytes of the head of a request.
HEAD_BYTES = 1 << 16


class Protocol(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._head: asyncio.TimerHandle | None = None
        self._head_size = 0
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._got_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; refuse a head that does not end."""
        super().data_received(data)
        if self._head is not None:
            self._head_size += len(data)
            if self._head_size > HEAD_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Begin the request."""
        self._got_head()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._got_head()
        self._head_size = 0
        self._head = self.loop.call_later(HEAD_SECONDS, self._refuse, b"408 Request Timeout")

    def _got_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _refuse(self, status: bytes) -> None:
        """Answer and close the connection, once no other answer is under way on it."""
        self._got_head()
        if self.cycle is not None and not self.cycle.response_complete:
            self._head = self.loop.call_later(HEAD_SECONDS, self._refuse, status)
        elif not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self.transport.close()
