"""The routes of the API, and their description: ``/openapi.json``."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Path
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from urifilter_redis.bloom.digest import HASHES
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.retention import EXPIRE_AFTER, RETENTIONS, SLICES, TIMED, WRITES
from urifilter_redis.bloom.sizing import ERROR_RATES, LAYOUTS, REDISBLOOM, SHARDS_LIMIT
from urifilter_redis.http_api import ERROR_CODES, KEY_HEADER, OPERATIONS, Meaning, write_json
from urifilter_redis.service import responses
from urifilter_redis.service.admin import Admin
from urifilter_redis.service.bodies import NAME_PATTERN, OfItems
from urifilter_redis.service.descriptions import DESCRIPTIONS, FILTER, Description
from urifilter_redis.service.endpoints import KEY_LENGTH, Service
from urifilter_redis.service.errors import LATER
from urifilter_redis.service.responses import Answer
from urifilter_redis.service.settings import FilterSettings

OPENAPI_PATH = "/openapi.json"

_TAGS = {
    "items": "Ask about items.",
    "claims": "Claim items until they are final.",
    "filters": "The state of filters.",
    "admin": 'Actions on whole filters, for tokens with access = "admin".',
    "service": "The state of the service.",
    "older interface": "For those who use it: `POST /v1/filters/{filter}/insert` tells the same.",
}

_Name = Annotated[
    str,
    Path(
        alias="filter",
        pattern=NAME_PATTERN,
        description="the filter's name",
        openapi_examples={FILTER: {"value": FILTER}},
    ),
]

_KEY = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "names the request of this token, so that a repeat gets the same answer: any text that no other "
    "request of it has, or client/slot/sequence (16 hex digits that the client draws, and two numbers; the sequence of "
    "a slot goes up)",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}

_SCHEMAS, _CREATE = "#/components/schemas/", "CreateRequest"

#: The methods whose requests have a body; others have a query.
_WITH_BODY = {"POST", "PUT"}

#: The settings that go with a retention alone, and those without which it is refused.
_OF_RETENTION: Mapping[str, tuple[str, ...]] = {
    "forever": (),
    "growing": (),
    "ring": ("slices", "period", "write", "expire_after", "period_capacity"),
    "rolling": ("slices", "period", "expire_after"),
}
_NEEDED = ("slices", "period")

#: The numbers that settings may be, whatever the retention.
_BOUNDS: Mapping[str, dict[str, Any]] = {
    "capacity": {"minimum": 1},
    "error_rate": {"minimum": ERROR_RATES[0], "maximum": ERROR_RATES[1]},
    "period_capacity": {"type": ["integer", "null"], "minimum": 1},
    "shards": {"type": ["integer", "null"], "minimum": 1, "maximum": SHARDS_LIMIT},
}


def add_routes(app: FastAPI, service: Service) -> None:
    """Add a route for each operation, and the OpenAPI document."""
    admin = Admin(service)
    for name, operation in OPERATIONS.items():
        path = service.settings.path if name == "unique" else operation.path
        endpoint, described = _endpoint(service, admin, name), DESCRIPTIONS[name]
        app.add_api_route(
            path,
            endpoint,
            methods=[operation.method],
            operation_id=name,
            tags=[operation.tag],
            summary=described.summary,
            response_class=Answer if described.answer else Response,
            responses=_answers(described),
            openapi_extra=_extra(name, [{"token": []}] if service.settings.tokens else []),
        )
        if operation.method == "GET":
            app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    app.openapi = functools.partial(_openapi, app, service)  # type: ignore[method-assign]
    _add_document(app, service)


def _endpoint(service: Service, admin: Admin, name: str) -> Callable[..., Any]:
    """Return the endpoint of an operation."""
    operation, asks = OPERATIONS[name], DESCRIPTIONS[name].asks
    if operation.tag == "admin":
        return _of_filter(admin.act, {"put_filter": "create", "delete_filter": "drop"}.get(name, name), asks)
    if asks is not None and issubclass(asks, OfItems):
        return _of_filter(service.command, name, asks)
    found: Callable[..., Any] = getattr(service, name)
    return _of_filter(found) if "{filter}" in operation.path else found


def _answers(described: Description) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of an operation."""
    good: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    if described.answer:
        good = {"model": described.answer}
    if described.example:
        good["content"] = {"application/json": {"example": described.example.answer}}
    return {200: {"description": "the answer", **good}, **_errors(described.codes)}


def _extra(name: str, secured: list[dict[str, list[str]]]) -> dict[str, Any]:
    """Describe the token, the body, and the parameters of an operation."""
    operation, described = OPERATIONS[name], DESCRIPTIONS[name]
    found: dict[str, Any] = {"security": secured if "unauthorized" in described.codes else []}
    if operation.tag == "older interface":
        found |= {"security": [*secured, {}], "deprecated": True}
    if operation.keyed:
        found["parameters"] = [_KEY]
    if described.asks is not None and operation.method in _WITH_BODY:
        schema = _CREATE if described.asks is FilterSettings else described.asks.__name__
        content: dict[str, Any] = {"schema": {"$ref": _SCHEMAS + schema}}
        if described.example:
            content["example"] = described.example.body
        found["requestBody"] = {"required": True, "content": {"application/json": content}}
    elif described.asks is not None:
        found["parameters"] = _query(described.asks)
    return found


def _errors(codes: set[str]) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of error codes, by status."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for code, meaning in ERROR_CODES.items():
        if code in codes:
            known = by_status.setdefault(
                int(meaning.status), {"model": responses.Error, "description": "", **_headers(meaning)}
            )
            known["description"] += f"{'; ' if known['description'] else ''}`{code}`: {meaning.when}"
    return by_status


def _headers(meaning: Meaning) -> dict[str, Any]:
    """Describe the headers of an error's response."""
    if meaning.status in LATER:
        return {"headers": {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}}
    if meaning.status == HTTPStatus.UNAUTHORIZED:
        return {"headers": {"WWW-Authenticate": {"description": "Bearer", "schema": {"type": "string"}}}}
    return {}


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Describe the parameters of a query."""
    schema, found = model.model_json_schema(), []
    for name, field in schema["properties"].items():
        kinds = field.pop("anyOf", [field])
        text = field.pop("description")
        needed = name in schema.get("required", ())
        found.append({"name": name, "in": "query", "required": needed, "description": text, "schema": kinds[0]})
    return found


def _of_filter(answer: Callable[..., Awaitable[Response]], *more: object) -> Callable[..., Any]:
    """Return an endpoint below a filter, which calls ``answer`` with the request, the filter's name, and more."""

    async def endpoint(request: Request, name: _Name) -> Response:
        return await answer(request, name, *more)

    return endpoint


def _openapi(app: FastAPI, service: Service) -> dict[str, Any]:
    """Return the OpenAPI document; it is made once."""
    if app.openapi_schema is None:
        tags = [{"name": name, "description": text} for name, text in _TAGS.items()]
        # Relative to the document: behind a proxy the service may stand below a path, beside other applications.
        servers = [{"url": ".", "description": "the service that this document is of"}]
        made = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes, tags=tags, servers=servers
        )
        made["components"]["schemas"] |= _requests(service.settings.limits.items)
        if service.settings.tokens:
            made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = made
    return app.openapi_schema


def _requests(most: int) -> dict[str, Any]:
    """Describe the bodies of requests, by their names; one has at most ``most`` items."""
    asked = {each.asks for name, each in DESCRIPTIONS.items() if OPERATIONS[name].method in _WITH_BODY}
    models = [(each, "validation") for each in asked - {FilterSettings}]
    _, made = models_json_schema(models, ref_template=_SCHEMAS + "{model}")  # type: ignore[arg-type]
    found: dict[str, Any] = dict(sorted(made["$defs"].items()))
    for schema in found.values():
        for name in {"items", "URI_list"} & schema["properties"].keys():
            schema["properties"][name]["maxItems"] = most
    return found | _create_requests()


def _create_requests() -> dict[str, Any]:
    """Describe the settings of a new filter: a schema for each retention, and one of them all."""
    known = FilterSettings.model_json_schema()["properties"]
    choices = {
        "hash": HASHES,
        "normalize": NORMALIZATIONS,
        "write": WRITES,
        "expire_after": EXPIRE_AFTER,
    }
    found: dict[str, Any] = {}
    for retention in RETENTIONS:
        others = {name for names in _OF_RETENTION.values() for name in names} - {*_OF_RETENTION[retention]}
        fields = {name: dict(field) for name, field in known.items() if name not in others}
        for name in _BOUNDS.keys() & fields.keys():
            fields[name].pop("anyOf", None)
            fields[name] |= _BOUNDS[name]
        for name in choices.keys() & fields.keys():
            fields[name]["enum"] = [*choices[name], *([None] if fields[name]["default"] is None else [])]
        fields["retention"] |= {"const": retention}
        lacking = {"forever": set(), "rolling": {"counting", REDISBLOOM}}.get(retention, {"counting"})
        fields["layout"]["enum"] = [each for each in LAYOUTS if each not in lacking]
        needed = ["capacity"]
        if retention != "forever":
            needed += ["retention", *(_NEEDED if retention in TIMED else ())]
            del fields["retention"]["default"]
        if retention in TIMED:
            least, most = SLICES[retention]
            fields["slices"] = {"type": "integer", "minimum": least, "maximum": most}
            fields["period"] = {"type": ["string", "integer"], "description": "45s, 10m, 6h, 1d, 2w, or seconds"}
        found[f"Create{retention.capitalize()}"] = {
            "type": "object",
            "description": f"The settings of a filter with retention {retention}.",
            "properties": fields,
            "required": needed,
            "additionalProperties": False,
        }
    names = dict(zip(RETENTIONS, (_SCHEMAS + name for name in found), strict=True))
    found[_CREATE] = {
        "description": "The settings of a new filter; without `retention` it is `forever`.",
        "oneOf": [{"$ref": name} for name in names.values()],
        "discriminator": {"propertyName": "retention", "mapping": names},
    }
    return found


def _add_document(app: FastAPI, service: Service) -> None:
    """Add the OpenAPI document, which is rendered once; it wants a token if the service has tokens."""

    @functools.cache
    def rendered() -> bytes:
        return write_json(app.openapi())

    async def document(request: Request) -> Response:
        service.whose(request)
        return Response(rendered(), media_type="application/json")

    app.add_route(OPENAPI_PATH, document, methods=["GET"], include_in_schema=False)
