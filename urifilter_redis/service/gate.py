"""The gate that every request passes: it refuses strangers, measures the time, and notes the outcome."""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders

from urifilter_redis.http_api import ATTEMPT_HEADER
from urifilter_redis.service import metrics
from urifilter_redis.service.bodies import Answer
from urifilter_redis.service.failures import ANSWER_HEADERS, Refusal
from urifilter_redis.service.settings import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CODE", "COMMAND", "COUNTS", "TOKEN", "Gate"]

#: Characters of an attempt's name that the answer repeats.
ATTEMPT_LENGTH = 200

#: Headers by which a proxy says that it passes on another machine's request.
_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")

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
            refusal = self._refusal(scope, passage.headers)
            if refusal is None:
                await self._app(scope, passage.receive, passage.send)
            else:
                scope[CODE] = refusal.code
                await Answer(refusal.content, refusal.status, refusal.headers)(scope, receive, passage.send)
        finally:
            seconds = time.perf_counter() - began
            if passage.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                scope[CODE] = "internal_error"
            metrics.observe(scope.get(COMMAND, "other"), passage.status, scope.get(CODE, ""), seconds)
            metrics.observe_token(scope.get(TOKEN, ""), scope.get(COUNTS, {}).get("filter", ""), passage.status)
            if self._log_requests:
                _log(scope, passage.status, seconds)

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        return (_foreign(headers) or self._passed_on(scope, headers)) if self._alone else None

    def _passed_on(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Refuse a request to a service without tokens that came through an unknown proxy."""
        passed = [name for name in _PASSED_ON if name in headers]
        client = (scope.get("client") or ("",))[0]
        if not passed or any(_is_in(client, proxy) for proxy in self._proxies):
            return None
        text = "this service has no tokens, and the request came through a proxy: add tokens, or trusted_proxies"
        if not self._has_warned:
            self._has_warned = True
            log_gate.error("%s (%s from %s): refused", text, passed[0], client)
        return Refusal("behind_proxy", text)


class _Passage:
    """One request, and its answer, which gets its headers here.

    Attributes:
        headers: the headers of the request.
        status: the HTTP status of the answer; 500 until there is one.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers, self.status = Headers(scope=scope), 500
        self._receive, self._send, self._is_read = receive, send, False
        self._attempt = self.headers.get(ATTEMPT_HEADER, "")[:ATTEMPT_LENGTH]

    async def receive(self) -> Message:
        """Read a part of the body."""
        self._is_read = True
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            more = MutableHeaders(scope=message)
            if self._attempt:
                more[ATTEMPT_HEADER] = self._attempt
            for name, value in ANSWER_HEADERS.items():
                more.setdefault(name, value)
            if "Expect" in self.headers and not self._is_read:
                more["Connection"] = "close"  # the body may come or not, so the next head cannot be found
        await self._send(message)


def _is_in(address: str, network: Network) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:  # the connection is not over IP
        return False


def _foreign(headers: Headers) -> Refusal | None:
    """Refuse a request to a service without tokens that names another host, or comes from another site's page."""
    host = headers.get("Host", "localhost")
    if not is_loopback(_parts(f"//{host}").hostname or ""):
        return Refusal("bad_host", "this service has no tokens, so it is asked as localhost only: add tokens")
    if "Origin" in headers and _parts(headers["Origin"]).netloc != host:
        return Refusal("foreign_origin", "this service has no tokens, so pages of other sites may not ask: add tokens")
    return None


def _parts(url: str) -> SplitResult:
    """Return the parts of a URL; all are empty if the text is not a URL."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _log(scope: Scope, status: int, seconds: float) -> None:
    fields = {
        "client": (scope.get("client") or ("",))[0],
        "request_id": Headers(scope=scope).get(ATTEMPT_HEADER, "")[:ATTEMPT_LENGTH],
        "token": scope.get(TOKEN, ""),
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "error_code": scope.get(CODE, ""),
        "ms": round(1000 * seconds, 2),
        **scope.get(COUNTS, {}),
    }
    shown = (f"{name}={_shown(value)}" for name, value in fields.items() if value != "")
    log.info(" ".join(shown), extra={"fields": fields})


def _shown(value: object) -> str:
    """Return a value in a form that fits into a line of the log."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(' "=') & set(text) else json.dumps(text)
