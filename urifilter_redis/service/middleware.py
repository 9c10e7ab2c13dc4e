"""The middleware of every request: it guards a service without tokens, measures the time, and notes the outcome."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from urifilter_redis.http_api import ATTEMPT_HEADER
from urifilter_redis.service import metrics
from urifilter_redis.service.errors import ANSWER_HEADERS, Refusal
from urifilter_redis.service.requests import FORWARDED_FOR, client_of, group_of, headers_of, is_in, peer_of
from urifilter_redis.service.responses import Answer
from urifilter_redis.service.settings import ServiceSettings, is_loopback

#: A name of a request or an attempt that is taken; it has no place for a URI.
_GOOD_ID = re.compile(rb"[A-Za-z0-9._:=+@-]{1,128}")

#: The names of the other requests to this worker: a random text, and a number that goes up.
_NAMED, _NUMBERS = secrets.token_hex(6).encode(), itertools.count(1)

#: Headers by which a proxy says that it passes on another machine's request.
_PASSED_ON = {name.lower().encode(): name for name in ("Forwarded", FORWARDED_FOR, "X-Forwarded-Host", "X-Real-IP")}

#: The judgements of so many Host headers are kept; in practice there is one.
HOSTS = 16

INTERNAL_ERROR = int(HTTPStatus.INTERNAL_SERVER_ERROR)

_ATTEMPT, _REQUEST_ID = ATTEMPT_HEADER.lower().encode(), b"x-request-id"
_ANSWER_HEADERS = [(name.lower().encode(), value.encode()) for name, value in ANSWER_HEADERS.items()]

#: The error codes of requests that had no right to be asked; they are counted by address.
_REFUSED = {"bad_host", "behind_proxy", "forbidden", "foreign_origin", "too_many_wrong_tokens", "unauthorized"}

log_refusals = logging.getLogger("urifilter_redis.service")
log = logging.getLogger("urifilter_redis.service.requests")

#: Keys of a request's scope. Endpoints put their notes for the log and the metrics there: the error code, the command,
#: the token's name, and a dictionary with the filter, its items and its new items.
CODE, COMMAND, TOKEN, COUNTS = "urifilter.code", "urifilter.command", "urifilter.token", "urifilter.counts"

#: The key for the path of the operation that a request is for; not every version of Starlette notes the route.
ROUTE = "urifilter.route"


class Middleware:
    """ASGI middleware.

    A service without tokens is for this machine only. But a browser on this machine asks for any site that is open in
    it, and a proxy on this machine asks for other machines. So such a service accepts a request only if it names this
    machine as its host, comes from no other site's page, and comes through no proxy but those of ``trusted_proxies``.

    ``settings`` returns the service's settings, which may change, and ``refuse`` is called with the address of each
    request that is refused.
    """

    def __init__(
        self, app: ASGIApp, *, settings: Callable[[], ServiceSettings], refuse: Callable[[str], object]
    ) -> None:
        self._app, self._settings, self._refuse = app, settings, refuse
        self._alone = not settings().tokens  # this does not change; see ``server.merged``
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; note the outcome."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, exchange = time.perf_counter(), _Exchange(scope, receive, send)
        try:
            refusal = (_foreign(headers_of(scope)) or self._passed_on(scope)) if self._alone else None
            if refusal is None:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                scope[CODE] = refusal.code
                await Answer(refusal.content, refusal.status, refusal.headers)(scope, receive, exchange.send)
        finally:
            seconds = time.perf_counter() - began
            if exchange.status == INTERNAL_ERROR:
                scope[CODE] = "internal_error"
            code = scope.get(CODE, "")
            metrics.observe(scope.get(COMMAND, "other"), exchange.status, code, seconds)
            metrics.observe_token(scope.get(TOKEN, ""), scope.get(COUNTS, {}).get("filter", ""), exchange.status)
            if code in _REFUSED:
                self._refuse(group_of(client_of(scope, self._settings().trusted_proxies)))
            if self._settings().log_requests:
                _log(scope, exchange, client_of(scope, self._settings().trusted_proxies), seconds)

    def _passed_on(self, scope: Scope) -> Refusal | None:
        """Refuse a request to a service without tokens that came through an unknown proxy."""
        passed = _PASSED_ON.keys() & headers_of(scope).keys()
        client = peer_of(scope)
        if not passed or is_in(client, self._settings().trusted_proxies):
            return None
        text = "this service has no tokens, and the request came through a proxy: add tokens, or trusted_proxies"
        if not self._has_warned:
            self._has_warned = True
            log_refusals.error("%s (%s from %s): refused", text, _PASSED_ON[min(passed)], client)
        return Refusal("behind_proxy", text)


class _Exchange:
    """One request, and its answer, which gets its headers here; its status is 500 until there is one."""

    __slots__ = ("_attempt", "_is_unread", "_receive", "_send", "receive", "request_id", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send, self.status = receive, send, INTERNAL_ERROR
        headers = headers_of(scope)
        given, self._attempt = headers.get(_REQUEST_ID, b""), headers.get(_ATTEMPT, b"")
        self.request_id = given if _GOOD_ID.fullmatch(given) else b"%s-%x" % (_NAMED, next(_NUMBERS))
        self._is_unread = b"expect" in headers
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
            more.append((_REQUEST_ID, self.request_id))
            if _GOOD_ID.fullmatch(self._attempt):
                more.append((_ATTEMPT, self._attempt))
            if self._is_unread:  # the body may come or not, so the next head cannot be found
                given = [each for each in given if each[0] != b"connection"]
                more.append((b"connection", b"close"))
            message["headers"] = [*given, *more]
        await self._send(message)


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


def _log(scope: Scope, exchange: _Exchange, client: str, seconds: float) -> None:
    """Write a line about a request; no text of its path and body is in it, for that may be a URI or a token."""
    fields = {
        "client": client,
        "request_id": exchange.request_id.decode(),
        "token": scope.get(TOKEN, ""),
        "method": scope["method"],
        "route": scope.get(ROUTE, ""),
        "status": exchange.status,
        "error_code": scope.get(CODE, ""),
        "ms": round(1000 * seconds, 2),
        **scope.get(COUNTS, {}),
    }
    log.info(line_of(fields), extra={"fields": fields})


def line_of(fields: Mapping[str, object]) -> str:
    """Return the line of a log for some fields; empty ones are left out."""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items() if value != "")


def _shown(value: object) -> str:
    """Return a value in a form that fits into a line of the log."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(' "=') & set(text) else json.dumps(text)
