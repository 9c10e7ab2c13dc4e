"""The description of the API: ``/openapi.json``."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from urifilter_redis._version import __version__
from urifilter_redis.bloom.digest import HASHES
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.retention import EXPIRE_AFTER, RETENTIONS, SLICES, TIMED, WRITES
from urifilter_redis.bloom.sizing import ERROR_RATES, LAYOUTS, REDISBLOOM, SHARDS_LIMIT
from urifilter_redis.http_api import ERROR_CODES, KEY_HEADER, OPERATIONS, Meaning, Operation
from urifilter_redis.service import responses
from urifilter_redis.service.bodies import NAME_PATTERN
from urifilter_redis.service.descriptions import DESCRIPTIONS, FILTER
from urifilter_redis.service.endpoints import KEY_LENGTH
from urifilter_redis.service.errors import LATER
from urifilter_redis.service.settings import FilterSettings, ServiceSettings

_TAGS = {
    "items": "Ask about items.",
    "claims": "Claim items until they are final.",
    "filters": "The state of filters.",
    "admin": 'Actions on whole filters, for tokens with access = "admin".',
    "service": "The state of the service.",
    "older interface": "For those who use it: `POST /v1/filters/{filter}/insert` tells the same.",
}

_NAME = {
    "name": "filter",
    "in": "path",
    "required": True,
    "description": "the filter's name",
    "schema": {"type": "string", "pattern": NAME_PATTERN, "description": "the filter's name", "title": "Filter"},
    "examples": {FILTER: {"value": FILTER}},
}

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


def document(settings: ServiceSettings) -> dict[str, Any]:
    """Return the OpenAPI document of a service."""
    secured: list[dict[str, list[str]]] = [{"token": []}] if settings.tokens else []
    paths: dict[str, dict[str, Any]] = {}
    for name, operation in OPERATIONS.items():
        paths.setdefault(path_of(name, settings), {})[operation.method.lower()] = _described(name, operation, secured)
    components: dict[str, Any] = {"schemas": _schemas(settings.limits.items)}
    if settings.tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "urifilter", "summary": "Has anybody seen this URI?", "version": __version__},
        # Relative to the document: behind a proxy the service may stand below a path, beside other applications.
        "servers": [{"url": ".", "description": "the service that this document is of"}],
        "paths": paths,
        "components": components,
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
    }


def path_of(operation: str, settings: ServiceSettings) -> str:
    """Return the path of an operation; the settings have that of the older interface."""
    return settings.path if operation == "unique" else OPERATIONS[operation].path


def _described(name: str, operation: Operation, secured: list[dict[str, list[str]]]) -> dict[str, Any]:
    """Describe an operation; ``secured`` says how a token is shown."""
    summary, answer, codes, asks, example = DESCRIPTIONS[name]
    found: dict[str, Any] = {"tags": [operation.tag], "summary": summary, "operationId": name}
    found["security"] = secured if "unauthorized" in codes else []
    if operation.tag == "older interface":
        found |= {"security": [*secured, {}], "deprecated": True}
    parameters = [_NAME] if "{filter}" in operation.path else []
    parameters += [_KEY] if operation.keyed else []
    if asks is not None and operation.method in _WITH_BODY:
        schema = _CREATE if asks is FilterSettings else asks.__name__
        content = {"application/json": _content(schema, example and example.body)}
        found["requestBody"] = {"required": True, "content": content}
    elif asks is not None:
        parameters += _query(asks)
    if parameters:
        found["parameters"] = parameters
    content = {"text/plain": {"schema": {"type": "string"}}}
    if answer is not None:
        content = {"application/json": _content(answer.__name__, example and example.answer)}
    found["responses"] = {"200": {"description": "the answer", "content": content}, **_errors(codes)}
    return found


def _content(schema: str, example: dict[str, Any] | None = None) -> dict[str, Any]:
    """Describe a body of a schema."""
    return {"schema": {"$ref": _SCHEMAS + schema}} | ({} if example is None else {"example": example})


def _errors(codes: set[str]) -> dict[str, dict[str, Any]]:
    """Describe the responses of error codes, by status."""
    by_status: dict[str, dict[str, Any]] = {}
    for code, meaning in ERROR_CODES.items():
        if code in codes:
            content = {"application/json": _content(responses.Error.__name__)}
            known = by_status.setdefault(
                str(int(meaning.status)), {"description": "", "content": content, **_headers(meaning)}
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


def _schemas(most: int) -> dict[str, Any]:
    """Describe the bodies of requests and answers, by their names; a request has at most ``most`` items."""
    asked = {each.asks for name, each in DESCRIPTIONS.items() if OPERATIONS[name].method in _WITH_BODY}
    answered = {responses.Error, *(each.answer for each in DESCRIPTIONS.values())}
    models = [(each, "validation") for each in asked if each not in {FilterSettings, None}]
    models += [(each, "serialization") for each in answered if each is not None]
    _, made = models_json_schema(models, ref_template=_SCHEMAS + "{model}")  # type: ignore[arg-type]
    found: dict[str, Any] = dict(sorted(made["$defs"].items()))
    names = {each.__name__ for each in asked if each is not None}
    for name, schema in found.items():
        for field, described in schema["properties"].items():
            if name in names and field in {"items", "URI_list"}:
                described["maxItems"] = most
            elif name not in names and described.get("default", "") is None:
                del described["default"]  # an answer without this field does not mean null
    return found | _create_requests()


def _create_requests() -> dict[str, Any]:
    """Describe the settings of a new filter: a schema for each retention, and one of them all."""
    known = FilterSettings.model_json_schema()["properties"]
    choices = {"hash": HASHES, "normalize": NORMALIZATIONS, "write": WRITES, "expire_after": EXPIRE_AFTER}
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
