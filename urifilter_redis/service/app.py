"""The application: its routes, its page, and the handlers that turn errors into answers."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Awaitable, Callable
from importlib.metadata import distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from urifilter_redis.errors import UriFilterError
from urifilter_redis.http_api import OPERATIONS, write_json
from urifilter_redis.service.admin import Admin
from urifilter_redis.service.bodies import NAME, NAME_PATTERN, OfItems
from urifilter_redis.service.descriptions import DESCRIPTIONS
from urifilter_redis.service.endpoints import Service
from urifilter_redis.service.errors import Refusal, refusal_of
from urifilter_redis.service.logs import Seldom
from urifilter_redis.service.middleware import CODE, COMMAND, ROUTE, Middleware
from urifilter_redis.service.openapi import document, path_of
from urifilter_redis.service.responses import Answer

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

outages = logging.getLogger("urifilter_redis.service.outages")
_seldom = Seldom()
outages.addFilter(lambda _: _seldom.passes())  # in an outage every request logs the same

_NAME = re.compile(NAME)
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PATHS = {"index.html": "/", "docs.html": "/docs"}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_app(service: Service) -> ASGIApp:
    """Make the application of one worker, whose filters are made or opened when it starts; settings may change."""
    return Middleware(router_of(service), settings=lambda: service.settings, refuse=service.usage.refuse)


def router_of(service: Service) -> Router:
    """Return the routes of a service, the first of which is the one that is asked most."""
    admin = Admin(service)
    routes = [
        _Route(path_of(name, service.settings), _endpoint(service, admin, name), methods=[operation.method])
        for name, operation in OPERATIONS.items()
    ]
    swagger = Path(str(distribution("fastapi-swagger").locate_file("fastapi_swagger/resources")))  # without FastAPI
    foreign = (swagger / name for name in ("swagger-ui.css", "swagger-ui-bundle.js"))  # the page asks no other origin
    pages = (*(files("urifilter_redis.service") / "page").iterdir(), *foreign)
    routes += [_Route(_PATHS.get(file.name, f"/{file.name}"), _page(file), include_in_schema=False) for file in pages]
    routes.append(_Route("/openapi.json", _document(service), include_in_schema=False))
    default = functools.partial(_handle, _refuse_path)
    return Router(routes, redirect_slashes=False, default=default, lifespan=service.lifespan)


class _Route(Route):
    """A route that answers its endpoint's errors: the middleware of a Starlette application takes 10 us a request."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to the path of this route; the log names it if it is an operation's."""
        if self.include_in_schema:
            scope[ROUTE] = self.path
        takes = self.methods is None or scope["method"] in self.methods
        await _handle(self.endpoint if takes else _refuse_method, scope, receive, send)


async def _handle(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request by an endpoint, or by the endpoint's error."""
    request = Request(scope, receive)
    try:
        answer = await endpoint(request)
    except (Refusal, UriFilterError) as error:
        answer = await _answer(request, error if isinstance(error, Refusal) else refusal_of(error))
    except Exception:
        refusal = Refusal("internal_error", "the service has a bug: its log has the details")
        await (await _answer(request, refusal))(scope, receive, send)
        raise  # for the log
    await answer(scope, receive, send)


async def _refuse_path(request: Request) -> Response:
    raise Refusal("not_found", f"{request.method} {request.url.path}: Not Found")


async def _refuse_method(request: Request) -> Response:
    routes = request.scope["router"].routes  # several of them can have this path
    takes = {method for each in routes if each.matches(request.scope)[0] is Match.PARTIAL for method in each.methods}
    text = f"{request.method} {request.url.path}: Method Not Allowed"
    raise Refusal("method_not_allowed", text, headers={"Allow": ", ".join(sorted(takes))})


def _endpoint(service: Service, admin: Admin, name: str) -> Endpoint:
    """Return the endpoint of an operation."""
    operation, asks = OPERATIONS[name], DESCRIPTIONS[name].asks
    if operation.tag == "admin":
        action = {"put_filter": "create", "delete_filter": "drop"}.get(name, name)
        return _of_filter(action, admin.act, action, asks)
    if asks is not None and issubclass(asks, OfItems):
        return _of_filter(name, service.command, name, asks)
    found: Endpoint = getattr(service, name)
    return _of_filter(name, found) if "{filter}" in operation.path else found


def _of_filter(command: str, answer: Callable[..., Awaitable[Response]], *more: object) -> Endpoint:
    """Return an endpoint below a filter, which calls ``answer`` with the request, the filter's name, and more.

    The metrics count its requests as those of ``command``.
    """

    async def endpoint(request: Request) -> Response:
        name = request.path_params["filter"]
        if not _NAME.fullmatch(name):
            raise Refusal("bad_request", f"filter: String should match pattern '{NAME_PATTERN}'")
        request.scope[COMMAND] = command
        return await answer(request, name, *more)

    return endpoint


def _document(service: Service) -> Endpoint:
    """Return the endpoint of the OpenAPI document, which wants a token if the service has tokens."""

    @functools.cache
    def rendered() -> bytes:
        return write_json(document(service.settings))

    async def endpoint(request: Request) -> Response:
        service.whose(request)
        return Response(rendered(), media_type="application/json")

    return endpoint


def _page(file: Traversable) -> Endpoint:
    content, kind = file.read_bytes(), _KINDS[Path(file.name).suffix]

    async def page(_: Request) -> Response:
        return Response(content, media_type=kind, headers=_PAGE_HEADERS)

    return page


async def _answer(request: Request, refusal: Refusal) -> Response:
    """Answer a refusal, once it may be answered."""
    request.scope[CODE] = refusal.code
    if refusal.detail:
        outages.warning("%s", refusal.detail)
    if refusal.hold:
        refusal.with_traceback(None)  # it keeps the request's body
        await asyncio.sleep(refusal.hold)
    return Answer(refusal.content, refusal.status, refusal.headers)
