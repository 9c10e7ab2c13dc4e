"""The gate that every request passes: it refuses strangers, measures the time, and notes the outcome."""

from __future__ import annotations

import functools
import ipaddress
import json
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, urlsplit

from urifilter_redis.http_api import ATTEMPT_HEADER
from urifilter_redis.service import metrics
from urifilter_redis.service.bodies import Answer
from urifilter_redis.service.failures import ANSWER_HEADERS, Refusal
from urifilter_redis.service.heads import header, headers_of
from urifilter_redis.service.settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CODE", "COMMAND", "COUNTS", "TOKEN", "Gate", "client_of", "line_of"]

#: Characters of an attempt's name that the answer repeats.
ATTEMPT_LENGTH = 200

#: Headers by which a proxy says that it passes on another machine's request.
_PASSED_ON = {name.lower().encode(): name for name in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")}

#: The judgements of so many Host headers are kept; in practice there is one.
HOSTS = 16

INTERNAL_ERROR = int(HTTPStatus.INTERNAL_SERVER_ERROR)

_ATTEMPT = ATTEMPT_HEADER.lower().encode()
_ANSWER_HEADERS = [(name.lower().encode(), value.encode()) for name, value in ANSWER_HEADERS.items()]

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

log_gate = logging.getLogger("urifilter_redis.service")
log = logging.getLogger("urifilter_redis.service.requests")

#: Keys of a request's scope. Endpoints put their notes for the log and the metrics there: the error code, the command,
#: the token's name, and a dictionary with the filter, its items and its new items.
CODE, COMMAND, TOKEN, COUNTS = "urifilter.code", "urifilter.command", "urifilter.token", "urifilter.counts"


class Gate:
    """ASGI middleware.

    A service without tokens (``alone``) is for this machine only. But a browser on this machine asks for any site that
    is open in it, and a proxy on this machine asks for other machines. So such a service accepts a request only if it
    names this machine as its host, comes from no other site's page, and comes through no proxy but those of
    ``proxies``.
    """

    def __init__(self, app: ASGIApp, *, alone: bool, proxies: Sequence[Network] = (), log_requests: bool) -> None:
        self._app, self._alone, self._proxies, self._log_requests = app, alone, proxies, log_requests
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; note the outcome."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, passage = time.perf_counter(), _Passage(scope, receive, send)
        try:
            refusal = self._refusal(scope) if self._alone else None
            if refusal is None:
                await self._app(scope, passage.receive, passage.send)
            else:
                scope[CODE] = refusal.code
                await Answer(refusal.content, refusal.status, refusal.headers)(scope, receive, passage.send)
        finally:
            seconds = time.perf_counter() - began
            if passage.status == INTERNAL_ERROR:
                scope[CODE] = "internal_error"
            metrics.observe(scope.get(COMMAND, "other"), passage.status, scope.get(CODE, ""), seconds)
            if self._log_requests:
                _log(scope, passage.status, seconds)

    def _refusal(self, scope: Scope) -> Refusal | None:
        return _foreign(headers_of(scope)) or self._passed_on(scope)

    def _passed_on(self, scope: Scope) -> Refusal | None:
        """Refuse a request to a service without tokens that came through an unknown proxy."""
        passed = _PASSED_ON.keys() & headers_of(scope).keys()
        client = client_of(scope)
        if not passed or any(_is_in(client, proxy) for proxy in self._proxies):
            return None
        text = "this service has no tokens, and the request came through a proxy: add tokens, or trusted_proxies"
        if not self._has_warned:
            self._has_warned = True
            log_gate.error("%s (%s from %s): refused", text, _PASSED_ON[min(passed)], client)
        return Refusal("behind_proxy", text)


class _Passage:
    """One request, and its answer, which gets its headers here.

    Attributes:
        receive: reads a part of the body.
        status: the HTTP status of the answer; 500 until there is one.
    """

    __slots__ = ("_attempt", "_is_unread", "_receive", "_send", "receive", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send, self.status = receive, send, INTERNAL_ERROR
        self._attempt = headers_of(scope).get(_ATTEMPT, b"")[:ATTEMPT_LENGTH]
        self._is_unread = b"expect" in headers_of(scope)
        self.receive = self._note if self._is_unread else receive

    async def _note(self) -> Message:
        """Read a part of a body that the client sends only when it is asked for."""
        self._is_unread = False
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = message["headers"]
            names = {name for name, _ in given}
            more = [each for each in _ANSWER_HEADERS if each[0] not in names]
            if self._attempt:
                more.append((_ATTEMPT, self._attempt))
            if self._is_unread:  # the body may come or not, so the next head cannot be found
                given = [each for each in given if each[0] != b"connection"]
                more.append((b"connection", b"close"))
            message["headers"] = [*given, *more]
        await self._send(message)


def _is_in(address: str, network: Network) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:  # the connection is not over IP
        return False


def _foreign(headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Refuse a request to a service without tokens that names another host, or comes from another site's page."""
    host = headers.get(b"host", b"localhost")
    if not _is_this_machine(host):
        return Refusal("bad_host", "this service has no tokens, so it is asked as localhost only: add tokens")
    origin = headers.get(b"origin")
    if origin is not None and _parts(origin.decode("latin-1")).netloc != host.decode("latin-1"):
        return Refusal("foreign_origin", "this service has no tokens, so pages of other sites may not ask: add tokens")
    return None


@functools.lru_cache(maxsize=HOSTS)
def _is_this_machine(host: bytes) -> bool:
    """Whether a Host header names this machine."""
    return is_loopback(_parts(f"//{host.decode('latin-1')}").hostname or "")


def _parts(url: str) -> SplitResult:
    """Return the parts of a URL; all are empty if the text is not a URL."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _log(scope: Scope, status: int, seconds: float) -> None:
    fields = {
        "client": client_of(scope),
        "request_id": header(scope, ATTEMPT_HEADER)[:ATTEMPT_LENGTH],
        "token": scope.get(TOKEN, ""),
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "error_code": scope.get(CODE, ""),
        "ms": round(1000 * seconds, 2),
        **scope.get(COUNTS, {}),
    }
    log.info(line_of(fields), extra={"fields": fields})


def client_of(scope: Scope) -> str:
    """Return the address that a request came from; empty if the connection is not over IP."""
    return str((scope.get("client") or ("",))[0])


def line_of(fields: Mapping[str, object]) -> str:
    """Return the line of a log for some fields; empty ones are left out."""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items() if value != "")


def _shown(value: object) -> str:
    """Return a value in a form that fits into a line of the log."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(' "=') & set(text) else json.dumps(text)
