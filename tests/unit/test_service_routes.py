"""The routes: where requests go, and how their errors are answered."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from urifilter_redis.http_api import DEFAULT_PATH, ERROR_CODES, FILTERS_PATH
from urifilter_redis.service import tokens
from urifilter_redis.service.app import make_app
from urifilter_redis.service.endpoints import Service
from urifilter_redis.service.middleware import CODE, ROUTE
from urifilter_redis.service.settings import Limits, ServiceSettings, TokenSettings

TOKEN, READER = tokens.new(), tokens.new()
BEARER, READS = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {READER}"}
INSERT, BODY = f"{FILTERS_PATH}/news/insert", b'{"items": ["https://example.com/"]}'
UNIQUE = b'{"filter_typeid": "news", "URI_list": [], "access_token": "no"}'


@pytest.fixture
def service():
    """A service whose application has not started, so that it fails where it would ask Redis."""
    known = (
        TokenSettings(name="all", digest=tokens.digest(TOKEN), access="write"),
        TokenSettings(name="reader", digest=tokens.digest(READER)),
    )
    return Service(ServiceSettings.model_construct(tokens=known, path=DEFAULT_PATH, limits=Limits(body=1024)))


def ask(app, method, path, headers=None, content=b"", *, raises=False):
    """Ask an application without a server."""

    async def asking():
        transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers, content=content)

    return asyncio.run(asking())


@pytest.mark.parametrize(
    ("path", "headers", "content", "status"),
    [
        (INSERT, {}, BODY, 401),
        (INSERT, {"Authorization": "Bearer wrong"}, BODY, 401),
        (DEFAULT_PATH, {}, UNIQUE, 401),
        (INSERT, READS, BODY, 403),
        (INSERT, BEARER, b"{", 400),
        (INSERT, BEARER, b"[]", 422),
        (INSERT, BEARER, b'{"items": [], "more": 1}', 422),
        (INSERT, BEARER, b'{"items": [1e999]}', 422),
        (INSERT, BEARER, b" " * 1025, 413),
        (INSERT, BEARER | {"Content-Encoding": "gzip"}, BODY, 415),
        (INSERT, BEARER | {"Idempotency-Key": "\t"}, BODY, 422),
        (INSERT, BEARER, BODY, 500),
        (f"{FILTERS_PATH}/news/claim", BEARER, b'{"items": [], "holder": "x"}', 422),
    ],
)
def test_errors_are_answered(service, path, headers, content, status):
    """An error has its status and code, and a refusal its headers; one that is a bug is answered, too."""
    answer = ask(make_app(service), "POST", path, headers, content)
    assert answer.status_code == ERROR_CODES[answer.json()["error_code"]].status == status
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", DEFAULT_PATH + "/", "not_found"),
        ("POST", f"{FILTERS_PATH}/news/insert/", "not_found"),
        ("POST", f"{FILTERS_PATH}/news/unknown", "not_found"),
        ("POST", f"{FILTERS_PATH}/a%2Fb/insert", "not_found"),
        ("POST", f"{FILTERS_PATH}/a%20name/insert", "bad_request"),
        ("POST", f"{FILTERS_PATH}/news%0A/insert", "bad_request"),
        ("POST", f"{FILTERS_PATH}/{'n' * 65}/insert", "bad_request"),
        ("POST", f"{FILTERS_PATH}/news/insert", "unauthorized"),
        ("POST", f"{FILTERS_PATH}/news/reclaim", "unauthorized"),
        ("GET", f"{FILTERS_PATH}/news", "unauthorized"),
        ("HEAD", f"{FILTERS_PATH}/news", "unauthorized"),
    ],
)
def test_what_a_path_leads_to(service, method, path, code):
    """A path is taken as it is, and a name that cannot be a filter's is refused before the token is looked at."""
    scopes = []
    assert ask(noting(make_app(service), scopes), method, path).status_code == ERROR_CODES[code].status
    assert scopes[0][CODE] == code


def noting(app, scopes):
    """Return an application that notes the scopes of its requests."""

    async def noted(scope, receive, send):
        scopes.append(scope)
        await app(scope, receive, send)

    return noted


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", INSERT, f"{FILTERS_PATH}/{{filter}}/insert"),
        ("PATCH", f"{FILTERS_PATH}/news", f"{FILTERS_PATH}/{{filter}}"),
        ("POST", DEFAULT_PATH, DEFAULT_PATH),
        ("GET", "/docs", None),
        ("GET", "/openapi.json", None),
        ("GET", "/nothing", None),
    ],
)
def test_what_the_log_names(service, method, path, route):
    """It names the path of the operation, whatever its answer is, and no filter."""
    scopes = []
    ask(noting(make_app(service), scopes), method, path)
    assert scopes[0].get(ROUTE) == route


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", DEFAULT_PATH, "POST"),
        ("PATCH", f"{FILTERS_PATH}/news", "DELETE, GET, HEAD, PUT"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
def test_other_methods_are_refused(service, method, path, allowed):
    """The answer names the methods of all operations with this path."""
    answer = ask(make_app(service), method, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert answer.json() == {"error_code": "method_not_allowed", "error": f"{method} {path}: Method Not Allowed"}


def test_bugs_reach_the_log(service):
    """An exception that is nobody's fault but ours is answered, and raised for the server's log."""
    with pytest.raises(AttributeError, match="filters"):
        ask(make_app(service), "POST", INSERT, BEARER, BODY, raises=True)
