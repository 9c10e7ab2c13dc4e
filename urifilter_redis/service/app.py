"""The application: its routes, its page, and the handlers that turn errors into answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from urifilter_redis._version import __version__
from urifilter_redis.errors import UriFilterError
from urifilter_redis.service.endpoints import Service
from urifilter_redis.service.errors import Refusal, refusal_of
from urifilter_redis.service.fast_path import FastPath
from urifilter_redis.service.logs import Seldom
from urifilter_redis.service.middleware import CODE, Middleware
from urifilter_redis.service.responses import Answer
from urifilter_redis.service.routes import add_routes
from urifilter_redis.service.settings import ServiceSettings

outages = logging.getLogger("urifilter_redis.service.outages")
_seldom = Seldom()
outages.addFilter(lambda _: _seldom.passes())  # in an outage every request logs the same

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
    app: ASGIApp = FastPath(service, make_api(service), _answer)
    return Middleware(app, settings=lambda: service.settings, refuse=service.usage.refuse)


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
    swagger = files("fastapi_swagger") / "resources"  # so that the page asks no other origin
    foreign = (swagger / name for name in ("swagger-ui.css", "swagger-ui-bundle.js"))
    for file in (*(files("urifilter_redis.service") / "page").iterdir(), *foreign):
        path = _PATHS.get(file.name, f"/{file.name}")
        app.add_route(path, _page(file), methods=["GET"], include_in_schema=False)
    for error in (Refusal, UriFilterError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(error, _answer)
    return app


def _page(file: Traversable) -> Callable[[Request], Awaitable[Response]]:
    content, kind = file.read_bytes(), _KINDS[Path(file.name).suffix]

    async def page(_: Request) -> Response:
        return Response(content, media_type=kind, headers=_PAGE_HEADERS)

    return page


async def _answer(request: Request, error: Exception) -> Response:
    """Answer an error of an endpoint or of FastAPI."""
    refusal = _refusal_for(request, error)
    request.scope[CODE] = refusal.code
    if refusal.detail:
        outages.warning("%s", refusal.detail)
    if refusal.hold:
        refusal.with_traceback(None)  # it keeps the request's body
        await asyncio.sleep(refusal.hold)
    return Answer(refusal.content, refusal.status, refusal.headers)


def _refusal_for(request: Request, error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case UriFilterError():
            return refusal_of(error)
        case RequestValidationError():
            return Refusal("bad_request", "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()))
        case HTTPException():
            return _refusal_of_route(request, error)
        case _:
            return Refusal("internal_error", "the service has a bug: its log has the details")


def _refusal_of_route(request: Request, error: HTTPException) -> Refusal:
    """Return the refusal of a request whose path does not exist, or does not take its method."""
    codes = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
    code = codes.get(error.status_code, "bad_request")
    headers = dict(error.headers or {})
    if code == "method_not_allowed":  # Starlette names the methods of one route, and a path can have several
        routes = (each for each in request.app.routes if each.matches(request.scope)[0] is Match.PARTIAL)
        headers["Allow"] = ", ".join(sorted({method for each in routes for method in each.methods}))
    return Refusal(code, f"{request.method} {request.url.path}: {error.detail}", headers=headers)
