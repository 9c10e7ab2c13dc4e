"""The routes, and their description in OpenAPI."""

from __future__ import annotations

import functools
from http import HTTPMethod, HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Path
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from starlette.requests import Request  # noqa: TC002 - FastAPI reads annotations
from starlette.responses import Response

from urifilter_redis.flows.info import FilterInfo  # noqa: TC001 - so does pydantic
from urifilter_redis.http_api import COMMANDS, ERROR_CODES, FILTERS_PATH, KEY_HEADER, Meaning
from urifilter_redis.service.bodies import NAME_PATTERN, Answer, Items, ItemsOf
from urifilter_redis.service.endpoints import KEY_LENGTH, Service
from urifilter_redis.service.failures import LATER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from urifilter_redis.service.settings import Limits

__all__ = ["add_routes"]

_Filter = Annotated[str, Field(description="the filter's name")]
_Total = Annotated[int, Field(description="items of the request")]
_Seen = Annotated[int, Field(description="items that were seen before")]
_Name = Annotated[str, Path(pattern=NAME_PATTERN, description="the filter's name")]


class Error(BaseModel):
    """An error, with advice on what to do."""

    error_code: str = Field(
        description="the word for the error, for programs", json_schema_extra={"enum": [*sorted(ERROR_CODES)]}
    )
    error: str = Field(description="the error and what to do about it, for people")
    indices: list[int] = Field(default=[], description="the positions of the items that the error is about")
    ages: list[int | None] = Field(default=[], description="the ages that arrived, null for each item without one")
    was_there: list[bool | None] = Field(default=[], description="the answers that arrived, likewise")


class Unique(BaseModel):
    """The items that were not seen before, in their order."""

    filter_typeid: _Filter
    URI_list_unique: list[Any] = Field(description="the items that are new, as they were sent")
    total: _Total
    unique: int = Field(description="items that are new")


class Inserted(BaseModel):
    """The age of each item before it was inserted, and whether it is new."""

    filter_typeid: _Filter
    ages: list[int] = Field(description="0: new; n: seen, in the n-th newest slice")
    new: list[bool] = Field(description="true: new")
    total: _Total
    unique: int = Field(description="items that are new")


class Found(BaseModel):
    """The age of each item; nothing was inserted."""

    filter_typeid: _Filter
    ages: list[int] = Field(description="0: new; n: seen, in the n-th newest slice")
    total: _Total
    seen: _Seen


class WasThere(BaseModel):
    """Whether each item was there."""

    filter_typeid: _Filter
    was_there: list[bool] = Field(description="for each item whether it was there")
    total: _Total
    seen: int = Field(description="items that were there")


class Filters(BaseModel):
    """The names of the filters that the token may use."""

    filters: list[str] = Field(description="the names, in alphabetical order")
    problems: dict[str, str] = Field(
        default={}, description="by name, the problems of filters that are answered all the same"
    )


class Answered(BaseModel):
    """The numbers of items that all workers of this service inserted or looked up since it started."""

    new: int = Field(description="items that were new")
    seen: _Seen


class Info(BaseModel):
    """The state of a filter."""

    filter_typeid: _Filter
    now: float = Field(description="time of Redis, in seconds since 1970")
    measured: float = Field(description="when `info` was read, likewise")
    answered: Answered = Field(description="the items that this service has answered")
    info: FilterInfo = Field(description="the filter's settings and state")
    problem: str | None = Field(default=None, description="the problem of a filter that is answered all the same")


class Status(BaseModel):
    """The state of the process."""

    status: str = Field(description="`ok` or `ready`")


_COMMANDS: Mapping[str, tuple[type[BaseModel], str]] = {
    "insert": (Inserted, "Insert items; new ones have age 0"),
    "contains": (Found, "Look items up; nothing is inserted"),
    "forget": (WasThere, "Make items new again"),
    "remove": (WasThere, "Take items out again (layout counting only)"),
}

#: The error codes of requests about items.
_OF_ITEMS = set(ERROR_CODES) - {"bad_http", "head_too_large", "not_found", "method_not_allowed", "not_ready"}
_OF_ALL = {"bad_host", "behind_proxy", "foreign_origin", "internal_error"}
_OF_SERVER = _OF_ALL | {"server_unavailable", "archive_unavailable"}
_OF_TOKENS = {"unauthorized", "forbidden"}
_OF_FILTER = {"filter_not_found", "bad_request", "config_mismatch", "restoring", "slice_lost", "too_many_requests"}

_KEY = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "names the request, so that a repeat gets the same answer: client/slot/sequence "
    "(16 hex digits and two numbers; the sequence of a slot goes up), or any text that no other request has",
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
        more = _body(Items, limits) | ({"parameters": [_KEY]} if COMMANDS[command].writes else {})
        path = f"{FILTERS_PATH}/{{filter_typeid}}/{command}"
        add(HTTPMethod.POST, path, _command(service, command), model, _OF_ITEMS, command, summary, more)
    add(HTTPMethod.GET, FILTERS_PATH, service.list, Filters, _OF_SERVER | _OF_TOKENS, "list",
        "List the filters that the token may use")  # fmt: skip
    of_info = _OF_SERVER | _OF_TOKENS | _OF_FILTER
    add(HTTPMethod.GET, FILTERS_PATH + "/{filter_typeid}", _info(service), Info, of_info, "info",
        "Tell the state of a filter: fill, error rate, slices, times")  # fmt: skip
    open_to_all: dict[str, Any] = {"security": []}
    add(HTTPMethod.GET, "/healthz", service.healthz, Status, _OF_ALL, "healthz",
        "Say that the process runs", open_to_all)  # fmt: skip
    add(HTTPMethod.GET, "/readyz", service.readyz, Status, _OF_ALL | {"server_unavailable", "not_ready"}, "readyz",
        "Say whether Redis and the filters of the settings answer", open_to_all)  # fmt: skip
    add(HTTPMethod.GET, "/metrics", service.metrics, None, _OF_SERVER | _OF_TOKENS, "metrics", "Metrics for Prometheus")
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
    good = {"model": model} if model else {"content": {"text/plain": {"schema": {"type": "string"}}}}
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        operation_id=name,
        summary=summary,
        response_class=Answer if model else Response,
        responses={200: {"description": "the answer", **good}, **_errors(codes)},
        openapi_extra={"security": secured, **(more or {})},
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
    schema["properties"]["URI_list"]["maxItems"] = limits.items
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _command(service: Service, command: str) -> Callable[..., Any]:
    async def endpoint(request: Request, filter_typeid: _Name) -> Response:
        return await service.command(request, filter_typeid, command)

    return endpoint


def _info(service: Service) -> Callable[..., Any]:
    async def endpoint(request: Request, filter_typeid: _Name) -> Response:
        return await service.info(request, filter_typeid)

    return endpoint


def _openapi(app: FastAPI, secured: list[dict[str, list[str]]]) -> dict[str, Any]:
    """Return the OpenAPI document; it is made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        if secured:
            made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = made
    return app.openapi_schema
