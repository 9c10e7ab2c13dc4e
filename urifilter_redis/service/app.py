"""The application: its routes, its page, and the handlers that turn errors into answers."""

from __future__ import annotations

import asyncio
import logging
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from urifilter_redis._version import __version__
from urifilter_redis.errors import UriFilterError
from urifilter_redis.service.bodies import Answer
from urifilter_redis.service.direct import Direct
from urifilter_redis.service.documented import add_routes
from urifilter_redis.service.endpoints import Service
from urifilter_redis.service.failures import Refusal, refusal_of
from urifilter_redis.service.gate import CODE, Gate
from urifilter_redis.service.logs import Seldom
from urifilter_redis.service.manual import add_document, foreign_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from importlib.resources.abc import Traversable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from urifilter_redis.service.settings import ServiceSettings

__all__ = ["make_api", "make_app", "make_app_of"]

outages = logging.getLogger("urifilter_redis.service.outages")

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PATHS = {"index.html": "/", "docs.html": "/docs"}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_app(settings: ServiceSettings) -> ASGIApp:
    """Make the application of one worker; its filters are made or opened when it starts."""
    return make_app_of(Service(settings))


def make_app_of(service: Service) -> ASGIApp:
    """Make the application of a service, whose settings may change meanwhile."""
    app: ASGIApp = Direct(service, make_api(service), _told)
    return Gate(app, settings=lambda: service.settings, refuse=service.usage.refuse)


def make_api(service: Service) -> FastAPI:
    """Make the part of the application that has all routes, and describes them."""
    app = FastAPI(
        title="urifilter",
        summary="Has anybody seen this URI?",
        version=__version__,
        lifespan=service.lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_routes(app, service)
    add_document(app, service)
    for file in (*(files("urifilter_redis.service") / "page").iterdir(), *foreign_files()):
        path = _PATHS.get(file.name, f"/{file.name}")
        app.add_route(path, _page(file), methods=["GET"], include_in_schema=False)
    for error, tell in _TOLD.items():
        app.add_exception_handler(error, tell)
    return app


def _page(file: Traversable) -> Callable[[Request], Awaitable[Response]]:
    content, kind = file.read_bytes(), _KINDS[Path(file.name).suffix]

    async def page(_: Request) -> Response:
        return Response(content, media_type=kind, headers=_PAGE_HEADERS)

    return page


async def _tell(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)  # noqa: S101 - see _TOLD
    request.scope[CODE] = refusal.code
    if refusal.detail:
        outages.warning("%s", refusal.detail)
    if refusal.hold:
        refusal.with_traceback(None)  # it keeps the request's body
        await asyncio.sleep(refusal.hold)
    return Answer(refusal.content, refusal.status, refusal.headers)


async def _tell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UriFilterError)  # noqa: S101 - likewise
    return await _tell(request, refusal_of(error))


async def _tell_wrong_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - likewise
    text = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    return await _tell(request, Refusal("bad_request", text))


async def _tell_http(request: Request, error: Exception) -> Response:
    """Answer an error of Starlette: the path does not exist, or does not take this method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - likewise
    codes = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
    code = codes.get(error.status_code, "bad_request")
    return await _tell(
        request, Refusal(code, f"{request.method} {request.url.path}: {error.detail}", headers=error.headers)
    )


async def _tell_bug(request: Request, _: Exception) -> Response:
    return await _tell(request, Refusal("internal_error", "the service has a bug: its log has the details"))


async def _told(request: Request, error: Exception) -> Response:
    """Answer an error of an endpoint, as FastAPI has it answered."""
    tell = next(_TOLD[kind] for kind in type(error).__mro__ if kind in _TOLD)
    return await tell(request, error)


_seldom = Seldom()
outages.addFilter(lambda _: _seldom.passes())  # in an outage every request logs the same

_TOLD = {
    Refusal: _tell,
    UriFilterError: _tell_error,
    RequestValidationError: _tell_wrong_path,
    HTTPException: _tell_http,
    Exception: _tell_bug,
}
