"""The routes of the API, and their description: ``/openapi.json``.

Each example is an answer of a new service that is asked in this order: the uid, times, sizes, and the items that others
have in flight, differ each time. For ``union`` there is an empty filter ``old``. For ``remove`` the filter has the
layout counting, and no periods.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPMethod, HTTPStatus
from typing import Annotated, Any, NamedTuple

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
from urifilter_redis.http_api import (
    ACCESS_PATH,
    COMMANDS,
    ERROR_CODES,
    FILTERS_PATH,
    KEY_HEADER,
    OVERVIEW_PATH,
    Meaning,
    write_json,
)
from urifilter_redis.service import responses
from urifilter_redis.service.admin import ACTIONS, Admin, DropRequest
from urifilter_redis.service.endpoints import BODIES, KEY_LENGTH, Service
from urifilter_redis.service.errors import LATER
from urifilter_redis.service.requests import (
    NAME_PATTERN,
    BeatRequest,
    ClaimsQuery,
    OlderItems,
    PageQuery,
    ReclaimRequest,
    RetryRequest,
)
from urifilter_redis.service.responses import Answer
from urifilter_redis.service.settings import FilterSettings

OPENAPI_PATH = "/openapi.json"

#: The name of the filter in all examples.
FILTER = "news"

_A, _B, _C, _D, _E = (f"https://example.com/{page}" for page in "abcde")
_HOLDER, _UID = "00112233aabbccdd", "5f0c1d2e3b4a5968"
_OF: dict[str, Any] = {"filter": FILTER}
_OLDER: dict[str, Any] = {"filter_typeid": FILTER}


class Example(NamedTuple):
    """A request's body, and the answer."""

    body: dict[str, Any]
    answer: dict[str, Any]


#: By operation.
EXAMPLES = {
    "create": Example({"capacity": 1_000_000, "retention": "ring", "slices": 4, "period": "1w"}, _OF | {"uid": _UID}),
    "unique": Example(_OLDER | {"URI_list": [_A, _B]}, _OLDER | {"URI_list_unique": [_A, _B], "total": 2, "unique": 2}),
    "insert": Example({"items": [_B, _C]}, _OF | {"ages": [1, 0], "new": [False, True], "total": 2, "unique": 1}),
    "contains": Example({"items": [_C, _D]}, _OF | {"ages": [1, 0], "total": 2, "seen": 1}),
    "forget": Example({"items": [_C]}, _OF | {"was_there": [True], "total": 1, "seen": 1}),
    "remove": Example({"items": [_A]}, _OF | {"was_there": [True], "total": 1, "seen": 1}),
    "claim": Example(
        {"items": [_D, _E], "holder": _HOLDER},
        _OF | {"ages": [0, 0], "claimed": [True, True], "counts": [], "total": 2, "unique": 2},
    ),
    "commit": Example(
        {"items": [_D], "holder": _HOLDER}, _OF | {"ages": [0], "committed": [True], "total": 1, "unique": 1}
    ),
    "release": Example(
        {"items": [_E], "holder": _HOLDER, "failed": True}, _OF | {"was_there": [True], "total": 1, "seen": 1}
    ),
    "reclaim": Example(
        {"holder": _HOLDER, "limit": 10},
        _OF
        | {
            "claims": [{"item": _E, "payload": _E, "failures": 1, "lapses": 0}],
            "total": 1,
            "outstanding": {"others": 3, "due": 42.5},
        },
    ),
    "beat": Example({"holder": _HOLDER}, _OF | {"in_flight": 1}),
    "retry_dead_letters": Example({"items": [_E]}, _OF | {"was_there": [False], "total": 1, "offered": 0}),
    "rotate": Example({"expected_epoch": 0}, _OF | {"epoch": 1, "rotated": True, "shards": 1, "problems": []}),
    "checkpoint": Example({"full": False}, _OF | {"number": 1, "begun": 1795300000.0, "shards": 1, "size": 1234}),
    "restore": Example({}, _OF | {"uid": _UID}),
    "acknowledge": Example({}, _OF | {"shards": 0}),
    "union": Example({"sources": ["old"]}, _OF | {"added": 0}),
    "drop": Example({"confirm": FILTER, "uid": _UID}, _OF | {"dropped": True}),
}

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

_COMMANDS: Mapping[str, tuple[type[BaseModel], str]] = {
    "insert": (responses.Inserted, "Insert items; new ones have age 0"),
    "contains": (responses.Found, "Look items up; nothing is inserted"),
    "forget": (responses.WasThere, "Make items new again"),
    "remove": (responses.WasThere, "Take items out again (layout counting only)"),
    "claim": (responses.Claimed, "Claim items that are new and not in flight"),
    "commit": (responses.Committed, "Make items final, whoever has them in flight"),
    "release": (responses.Released, "Give items back, to be offered again by reclaim"),
}

_ACTIONS: Mapping[str, tuple[type[BaseModel], str]] = {
    "create": (
        responses.OfOne,
        "Make a filter; if it exists with these settings, do nothing (for tokens with access admin)",
    ),
    "rotate": (responses.Rotated, "Close the newest slice and begin the next (admin)"),
    "checkpoint": (responses.Checkpointed, "Write the changes since the last checkpoint to the archive (admin)"),
    "restore": (responses.OfOne, "Bring back from the archive the parts that Redis lacks (admin)"),
    "acknowledge": (responses.Acknowledged, "Note that what restores may have lost is known (admin)"),
    "union": (responses.United, "Insert all items of other filters of equal geometry, hash and seed (admin)"),
    "drop": (responses.Dropped, "Remove a filter with all its items, and its archive (admin)"),
}

_PUT = "Make a filter; if it exists with these settings, do nothing; with others, refuse"

_OF_UNIONS = {"over_capacity"}
_OF_NO_ITEMS = {"bad_http", "head_too_large", "not_found", "method_not_allowed", "not_ready"} | _OF_UNIONS

#: The error codes of requests about items.
_OF_ITEMS = set(ERROR_CODES) - _OF_NO_ITEMS
_OF_ALL = {"bad_host", "behind_proxy", "foreign_origin", "internal_error"}
_OF_SERVER = _OF_ALL | {"server_full", "server_unavailable", "archive_unavailable"}
_OF_BODIES = {"bad_json", "body_too_large", "too_slow", "unsupported_encoding"}
_OF_TOKENS = {"unauthorized", "forbidden", "too_many_wrong_tokens"}
_OF_FILTER = {
    "filter_not_found",
    "bad_request",
    "config_mismatch",
    "restoring",
    "slice_lost",
    "too_many_requests",
    "unsupported",
}

_OF_READS = _OF_SERVER | _OF_TOKENS
_OF_STATES = _OF_READS | _OF_FILTER
_OF_HOLDERS = _OF_STATES | _OF_BODIES
_OF_ACTIONS = _OF_HOLDERS | {"answer_lost", "refused"}

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

#: The bodies of requests, by their names in the document; that of ``create`` is one of several.
_REQUESTS: set[type[BaseModel]] = {*BODIES.values(), *(body for body, _ in ACTIONS.values())}
_REQUESTS |= {OlderItems, ReclaimRequest, BeatRequest, RetryRequest}

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
    """Add all routes, and the OpenAPI document."""
    routes = _Routes(app, service)
    _add_items(routes, service)
    _add_admin(routes, service)
    _add_states(routes, service)
    routes.add(HTTPMethod.POST, service.settings.path, "unique", "older interface",
               "Insert items, and answer the new ones", service.unique, responses.Unique,
               _OF_ITEMS - {"not_for_this_filter"},
               _body(OlderItems.__name__, "unique") | {"parameters": [_KEY], "deprecated": True},
               security=[*routes.secured, {}])  # fmt: skip
    app.openapi = functools.partial(_openapi, app, service)  # type: ignore[method-assign]
    _add_document(app, service)


def _add_items(routes: _Routes, service: Service) -> None:
    for command, (model, summary) in _COMMANDS.items():
        tag = "claims" if command in {"claim", "commit", "release"} else "items"
        routes.post(command, tag, summary, _of_filter(service.command, command), model, _OF_ITEMS, BODIES[command],
                    keyed=COMMANDS[command].writes)  # fmt: skip
    routes.post("reclaim", "claims", "Claim what dead holders had, and what was released and is due",
                _of_filter(service.reclaim), responses.Reclaimed, _OF_ACTIONS, ReclaimRequest, keyed=True)  # fmt: skip
    routes.post("beat", "claims", "Keep what a holder has in flight", _of_filter(service.beat), responses.InFlight,
                _OF_HOLDERS, BeatRequest)  # fmt: skip
    routes.post("retry_dead_letters", "claims", "Offer the dead letters once more, some of it or all",
                _of_filter(service.retry_dead_letters), responses.Offered, _OF_ITEMS, RetryRequest,
                keyed=True)  # fmt: skip
    path, paged = FILTERS_PATH + "/{filter}", _query(ClaimsQuery)
    routes.get(path + "/in_flight", "in_flight", "claims", "List what is in flight, with its holders and counts",
               _of_filter(service.in_flight), responses.ListInFlight, _OF_STATES, paged)  # fmt: skip
    routes.get(path + "/dead_letters", "dead_letters", "claims", "List the dead letters, the latest first",
               _of_filter(service.dead_letters), responses.ListDeadLetters, _OF_STATES, paged)  # fmt: skip


def _add_admin(routes: _Routes, service: Service) -> None:
    admin = Admin(service)
    for action, (model, summary) in _ACTIONS.items():
        codes = _OF_ACTIONS | (_OF_UNIONS if action == "union" else set())
        routes.post(action, "admin", summary, _of_filter(admin.act, action), model, codes, ACTIONS[action][0])
    path = FILTERS_PATH + "/{filter}"
    routes.add(HTTPMethod.PUT, path, "put_filter", "admin", _PUT, _of_filter(admin.act, "create"), responses.OfOne,
               _OF_ACTIONS, _body(_CREATE, "create"))  # fmt: skip
    routes.add(HTTPMethod.DELETE, path, "delete_filter", "admin", _ACTIONS["drop"][1], _of_filter(admin.act, "drop"),
               responses.Dropped, _OF_ACTIONS - _OF_BODIES, _query(DropRequest))  # fmt: skip


def _add_states(routes: _Routes, service: Service) -> None:
    path, paged, listed = FILTERS_PATH + "/{filter}", _query(PageQuery), _OF_READS | {"bad_request"}
    routes.get(FILTERS_PATH, "list", "filters", "List the filters that the token may use", service.list,
               responses.Filters, listed, paged)  # fmt: skip
    routes.get(path, "info", "filters", "Tell the state of a filter: fill, error rate, slices, times",
               _of_filter(service.info), responses.Info, _OF_STATES)  # fmt: skip
    routes.get(path + "/detail", "detail", "filters",
               "Tell the state of a filter, its problems, and what is plotted of the last day",
               _of_filter(service.detail), responses.Detail, _OF_STATES)  # fmt: skip
    routes.get(OVERVIEW_PATH, "overview", "filters",
               "Tell the state and the problems of all filters of the token, of Redis, and of the service",
               service.overview, responses.Overview, listed, paged)  # fmt: skip
    routes.get("/healthz", "healthz", "service", "Say that the process runs", service.healthz,
               responses.Status, _OF_ALL, security=[])  # fmt: skip
    routes.get("/readyz", "readyz", "service", "Say whether Redis and the filters of the settings answer",
               service.readyz, responses.Status, _OF_ALL | {"server_unavailable", "not_ready"},
               security=[])  # fmt: skip
    routes.get("/metrics", "metrics", "service", "Metrics for Prometheus", service.metrics, None, _OF_READS)
    routes.get(ACCESS_PATH, "access", "service",
               "Tell when each token was last used, and which addresses were refused", service.access, responses.Access,
               _OF_ALL | _OF_TOKENS)  # fmt: skip


class _Routes:
    """Adds routes to an application."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self._app = app
        self.secured: list[dict[str, list[str]]] = [{"token": []}] if service.settings.tokens else []

    def post(  # noqa: PLR0913, PLR0917 - the parts of a route
        self,
        name: str,
        tag: str,
        summary: str,
        endpoint: Callable[..., Any],
        model: type[BaseModel],
        codes: set[str],
        body: type[BaseModel],
        *,
        keyed: bool = False,
    ) -> None:
        """Add a verb below a filter."""
        more = _body(_CREATE if body is FilterSettings else body.__name__, name)
        more |= {"parameters": [_KEY]} if keyed else {}
        path = f"{FILTERS_PATH}/{{filter}}/{name}"
        self.add(HTTPMethod.POST, path, name, tag, summary, endpoint, model, codes, more)

    def get(self, path: str, *parts: Any, **more: Any) -> None:
        """Add a route that reads, by GET and by HEAD."""
        self.add(HTTPMethod.GET, path, *parts, **more)
        self._app.add_api_route(path, parts[3], methods=[HTTPMethod.HEAD], include_in_schema=False)

    def add(  # noqa: PLR0913, PLR0917 - the parts of a route
        self,
        method: HTTPMethod,
        path: str,
        name: str,
        tag: str,
        summary: str,
        endpoint: Callable[..., Any],
        model: type[BaseModel] | None,
        codes: set[str],
        more: Mapping[str, Any] | None = None,
        security: list[dict[str, list[str]]] | None = None,
    ) -> None:
        """Add a route; without a model its answer is text, and without ``security`` it wants the service's tokens."""
        good: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
        if model:
            good = {"model": model}
        example = {"put_filter": "create", "delete_filter": "drop"}.get(name, name)
        if example in EXAMPLES:
            good["content"] = {"application/json": {"example": EXAMPLES[example].answer}}
        self._app.add_api_route(
            path,
            endpoint,
            methods=[method],
            operation_id=name,
            tags=[tag],
            summary=summary,
            response_class=Answer if model else Response,
            responses={200: {"description": "the answer", **good}, **_errors(codes)},
            openapi_extra={"security": self.secured if security is None else security, **(more or {})},
        )


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


def _body(name: str, example: str) -> dict[str, Any]:
    content = {"schema": {"$ref": _SCHEMAS + name}, "example": EXAMPLES[example].body}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _query(model: type[BaseModel]) -> dict[str, Any]:
    """Describe the parameters of a query."""
    schema, found = model.model_json_schema(), []
    for name, field in schema["properties"].items():
        kinds = field.pop("anyOf", [field])
        text = field.pop("description")
        needed = name in schema.get("required", ())
        found.append({"name": name, "in": "query", "required": needed, "description": text, "schema": kinds[0]})
    return {"parameters": found}


def _of_filter(answer: Callable[..., Awaitable[Response]], *more: str) -> Callable[..., Any]:
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
    models = [(each, "validation") for each in _REQUESTS - {FilterSettings}]
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
