"""What every request passes: is it asked from here, how long did it take, what came out."""

from __future__ import annotations

import json
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders

from urifilter_redis.http_api import ATTEMPT_HEADER
from urifilter_redis.service import metrics
from urifilter_redis.service.bodies import Answer
from urifilter_redis.service.failures import Refusal
from urifilter_redis.service.settings import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CODE", "COMMAND", "COUNTS", "TOKEN", "Gate"]

#: Characters of an attempt's name that are repeated.
ATTEMPT_LENGTH = 200

log = logging.getLogger("urifilter_redis.service.requests")

#: What endpoints leave in a request's scope for its log line and metrics: the error code, the command, the token's
#: name, and filter, items and new items as a dictionary.
CODE, COMMAND, TOKEN, COUNTS = "urifilter.code", "urifilter.command", "urifilter.token", "urifilter.counts"


class Gate:
    """ASGI middleware.

    Without tokens (``alone``) only this machine may ask, and a browser here asks for whatever site is open in it. So
    then a request must be addressed to this machine by name, and must not come from a page of another site.
    """

    def __init__(self, app: ASGIApp, *, alone: bool, log_requests: bool) -> None:
        self._app, self._alone, self._log_requests = app, alone, log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; note what came out."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, read = time.perf_counter(), 500, False
        headers = Headers(scope=scope)
        attempt = headers.get(ATTEMPT_HEADER, "")[:ATTEMPT_LENGTH]

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = MutableHeaders(scope=message)
                if attempt:
                    more[ATTEMPT_HEADER] = attempt
                if "Expect" in headers and not read:  # the body may come, or not: who knows where the next head begins
                    more["Connection"] = "close"
            await send(message)

        async def reading() -> Message:
            nonlocal read
            read = True
            return await receive()

        try:
            refusal = _foreign(headers) if self._alone else None
            if refusal is None:
                await self._app(scope, reading, noting)
            else:
                scope[CODE] = refusal.code
                await Answer(refusal.content, refusal.status, refusal.headers)(scope, receive, noting)
        finally:
            seconds = time.perf_counter() - began
            if status == HTTPStatus.INTERNAL_SERVER_ERROR:
                scope[CODE] = "internal_error"
            metrics.observe(scope.get(COMMAND, "other"), status, scope.get(CODE, ""), seconds)
            if self._log_requests:
                _log(scope, status, seconds)


def _foreign(headers: Headers) -> Refusal | None:
    """Say what is wrong with who asks a service without tokens."""
    host = headers.get("Host", "localhost")
    if not is_loopback(_parts(f"//{host}").hostname or ""):
        return Refusal("bad_host", "this service has no tokens, so it is asked as localhost only: add tokens")
    if "Origin" in headers and _parts(headers["Origin"]).netloc != host:
        return Refusal("foreign_origin", "this service has no tokens, so pages of other sites may not ask: add tokens")
    return None


def _parts(url: str) -> SplitResult:
    """Return the parts of a URL; all empty if it is none."""
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
    """Return a value as it may stand in a line."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(' "=') & set(text) else json.dumps(text)
