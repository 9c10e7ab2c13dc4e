"""The routes, and their description in OpenAPI."""

from __future__ import annotations

import functools
from http import HTTPMethod, HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Path
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations
from starlette.responses import Response

from urifilter_redis.http_api import (
    ACCESS_PATH,
    COMMANDS,
    ERROR_CODES,
    FILTERS_PATH,
    KEY_HEADER,
    OVERVIEW_PATH,
    Meaning,
)
from urifilter_redis.service.acting import Acting
from urifilter_redis.service.actions import BODIES as ACTION_BODIES
from urifilter_redis.service.answers import (
    Access,
    Checkpointed,
    Claimed,
    Committed,
    Dropped,
    Error,
    Filters,
    Found,
    Info,
    InHand,
    Inserted,
    OfOne,
    Reclaimed,
    Released,
    Rotated,
    Status,
    Unique,
    United,
    WasThere,
)
from urifilter_redis.service.answers_of_looks import Detail, Overview
from urifilter_redis.service.bodies import NAME_PATTERN, Answer, ItemsOf, ToBeat, ToReclaim
from urifilter_redis.service.claims import BODIES
from urifilter_redis.service.endpoints import KEY_LENGTH, Service
from urifilter_redis.service.examples import EXAMPLES, FILTER
from urifilter_redis.service.failures import LATER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from pydantic import BaseModel

    from urifilter_redis.service.settings import Limits

__all__ = ["add_routes"]

_Name = Annotated[
    str, Path(pattern=NAME_PATTERN, description="the filter's name", openapi_examples={FILTER: {"value": FILTER}})
]

_COMMANDS: Mapping[str, tuple[type[BaseModel], str]] = {
    "insert": (Inserted, "Insert items; new ones have age 0"),
    "contains": (Found, "Look items up; nothing is inserted"),
    "forget": (WasThere, "Make items new again"),
    "remove": (WasThere, "Take items out again (layout counting only)"),
    "claim": (Claimed, "Take items in hand that are new and in nobody's hands"),
    "commit": (Committed, "Make items final, whoever has them in hand"),
    "release": (Released, "Give items back, to be offered again by reclaim"),
}

_ACTIONS: Mapping[str, tuple[type[BaseModel], str]] = {
    "create": (OfOne, "Make a filter; if it exists with these settings, do nothing (for tokens with access admin)"),
    "rotate": (Rotated, "Close the newest slice and begin the next (admin)"),
    "checkpoint": (Checkpointed, "Write the changes since the last checkpoint to the archive (admin)"),
    "restore": (OfOne, "Bring back from the archive the parts that Redis lacks (admin)"),
    "union": (United, "Insert all items of other filters of equal geometry, hash and seed (admin)"),
    "drop": (Dropped, "Remove a filter with all its items, and its archive (admin)"),
}

_OF_UNIONS = {"over_capacity"}
_OF_NO_ITEMS = {"bad_http", "head_too_large", "not_found", "method_not_allowed", "not_ready"} | _OF_UNIONS

#: The error codes of requests about items.
_OF_ITEMS = set(ERROR_CODES) - _OF_NO_ITEMS
_OF_ALL = {"bad_host", "behind_proxy", "foreign_origin", "internal_error"}
_OF_SERVER = _OF_ALL | {"server_full", "server_unavailable", "archive_unavailable"}
_OF_BODIES = {"bad_json", "body_too_large", "too_slow", "unsupported_encoding"}
_OF_TOKENS = {"unauthorized", "forbidden", "too_many_wrong_tokens"}
_OF_FILTER = {"filter_not_found", "bad_request", "config_mismatch", "restoring", "slice_lost", "too_many_requests"}

_KEY = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "names the request of this token, so that a repeat gets the same answer: any text that no other "
    "request of it has, or client/slot/sequence (16 hex digits that the client draws, and two numbers; the sequence of "
    "a slot goes up)",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}


def add_routes(app: FastAPI, service: Service) -> None:
    """Add all routes, and the OpenAPI document."""
    settings = service.settings
    secured: list[dict[str, list[str]]] = [{"token": []}] if settings.tokens else []
    add = functools.partial(_add, app, secured)
    limits = settings.limits
    unique = {**_body(ItemsOf, limits), "parameters": [_KEY], "security": [*secured, {}]}
    add(HTTPMethod.POST, settings.path, service.unique, Unique, _OF_ITEMS - {"not_for_this_filter"}, "unique",
        "Insert items, and answer the new ones", unique)  # fmt: skip
    for command, (model, summary) in _COMMANDS.items():
        more = _body(BODIES[command], limits) | ({"parameters": [_KEY]} if COMMANDS[command].writes else {})
        path = f"{FILTERS_PATH}/{{filter_typeid}}/{command}"
        add(HTTPMethod.POST, path, _command(service, command), model, _OF_ITEMS, command, summary, more)
    of_holders = _OF_SERVER | _OF_TOKENS | _OF_FILTER | _OF_BODIES
    add(HTTPMethod.POST, FILTERS_PATH + "/{filter_typeid}/reclaim", _of_filter(service.reclaim), Reclaimed,
        of_holders | {"answer_lost", "refused"}, "reclaim",
        "Take in hand what dead holders had, and what was released and is due",
        {**_body(ToReclaim, limits), "parameters": [_KEY]})  # fmt: skip
    add(HTTPMethod.POST, FILTERS_PATH + "/{filter_typeid}/beat", _of_filter(service.beat), InHand, of_holders, "beat",
        "Keep in a holder's hands what it has", _body(ToBeat, limits))  # fmt: skip
    acting = Acting(service)
    for action, (model, summary) in _ACTIONS.items():
        add(HTTPMethod.POST, f"{FILTERS_PATH}/{{filter_typeid}}/{action}", _action(acting, action), model,
            of_holders | {"answer_lost", "refused"} | (_OF_UNIONS if action == "union" else set()), action, summary,
            _body(ACTION_BODIES[action], limits))  # fmt: skip
    add(HTTPMethod.GET, FILTERS_PATH, service.list, Filters, _OF_SERVER | _OF_TOKENS, "list",
        "List the filters that the token may use")  # fmt: skip
    of_info = _OF_SERVER | _OF_TOKENS | _OF_FILTER
    add(HTTPMethod.GET, FILTERS_PATH + "/{filter_typeid}", _of_filter(service.info), Info, of_info, "info",
        "Tell the state of a filter: fill, error rate, slices, times")  # fmt: skip
    add(HTTPMethod.GET, FILTERS_PATH + "/{filter_typeid}/detail", _of_filter(service.detail), Detail, of_info, "detail",
        "Tell the state of a filter, its problems, and what is plotted of the last day")  # fmt: skip
    add(HTTPMethod.GET, OVERVIEW_PATH, service.overview, Overview, _OF_SERVER | _OF_TOKENS, "overview",
        "Tell the state and the problems of all filters of the token, of Redis, and of the service")  # fmt: skip
    open_to_all: dict[str, Any] = {"security": []}
    add(HTTPMethod.GET, "/healthz", service.healthz, Status, _OF_ALL, "healthz",
        "Say that the process runs", open_to_all)  # fmt: skip
    add(HTTPMethod.GET, "/readyz", service.readyz, Status, _OF_ALL | {"server_unavailable", "not_ready"}, "readyz",
        "Say whether Redis and the filters of the settings answer", open_to_all)  # fmt: skip
    add(HTTPMethod.GET, "/metrics", service.metrics, None, _OF_SERVER | _OF_TOKENS, "metrics", "Metrics for Prometheus")
    add(HTTPMethod.GET, ACCESS_PATH, service.access, Access, _OF_ALL | _OF_TOKENS, "access",
        "Tell when each token was last used, and which addresses were refused")  # fmt: skip
    app.openapi = functools.partial(_openapi, app, secured)  # type: ignore[method-assign]


def _add(  # noqa: PLR0913, PLR0917 - the parts of a route
    app: FastAPI,
    secured: list[dict[str, list[str]]],
    method: HTTPMethod,
    path: str,
    endpoint: Callable[..., Any],
    model: type[BaseModel] | None,
    codes: set[str],
    name: str,
    summary: str,
    more: Mapping[str, Any] | None = None,
) -> None:
    good: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    if model:
        good = {"model": model}
    more = dict(more or {})
    if example := EXAMPLES.get(name):
        good["content"] = {"application/json": {"example": example.answer}}
        more["requestBody"]["content"]["application/json"]["example"] = example.body
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        operation_id=name,
        summary=summary,
        response_class=Answer if model else Response,
        responses={200: {"description": "the answer", **good}, **_errors(codes)},
        openapi_extra={"security": secured, **more},
    )
    if method is HTTPMethod.GET:
        app.add_api_route(path, endpoint, methods=[HTTPMethod.HEAD], include_in_schema=False)


def _errors(codes: set[str]) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of error codes, by status."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for code, meaning in ERROR_CODES.items():
        if code in codes:
            known = by_status.setdefault(int(meaning.status), {"model": Error, "description": "", **_headers(meaning)})
            known["description"] += f"{'; ' if known['description'] else ''}`{code}`: {meaning.when}"
    return by_status


def _headers(meaning: Meaning) -> dict[str, Any]:
    """Describe the headers of an error's response."""
    if meaning.status in LATER:
        return {"headers": {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}}
    if meaning.status == HTTPStatus.UNAUTHORIZED:
        return {"headers": {"WWW-Authenticate": {"description": "Bearer", "schema": {"type": "string"}}}}
    return {}


def _body(model: type[BaseModel], limits: Limits) -> dict[str, Any]:
    schema = model.model_json_schema()
    if "URI_list" in schema["properties"]:
        schema["properties"]["URI_list"]["maxItems"] = limits.items
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _command(service: Service, command: str) -> Callable[..., Any]:
    async def endpoint(request: Request, filter_typeid: _Name) -> Response:
        return await service.command(request, filter_typeid, command)

    return endpoint


def _action(acting: Acting, action: str) -> Callable[..., Any]:
    async def endpoint(request: Request, filter_typeid: _Name) -> Response:
        return await acting.act(request, filter_typeid, action)

    return endpoint


def _of_filter(answer: Callable[[Request, str], Awaitable[Response]]) -> Callable[..., Any]:
    async def endpoint(request: Request, filter_typeid: _Name) -> Response:
        return await answer(request, filter_typeid)

    return endpoint


def _openapi(app: FastAPI, secured: list[dict[str, list[str]]]) -> dict[str, Any]:
    """Return the OpenAPI document; it is made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        if secured:
            made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = made
    return app.openapi_schema
