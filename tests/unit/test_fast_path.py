"""The short way to the endpoints: it answers as FastAPI does, and takes what it is for."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from urifilter_redis.http_api import DEFAULT_PATH, FILTERS_PATH
from urifilter_redis.service import tokens
from urifilter_redis.service.app import make_api, make_app
from urifilter_redis.service.endpoints import Service
from urifilter_redis.service.fast_path import FastPath
from urifilter_redis.service.settings import Limits, ServiceSettings, TokenSettings

TOKEN, READER = tokens.new(), tokens.new()
BEARER, READS = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {READER}"}
INSERT, BODY = f"{FILTERS_PATH}/news/insert", b'{"items": ["https://example.com/"]}'
UNIQUE = b'{"filter_typeid": "news", "URI_list": [], "access_token": "no"}'

COMMANDS = ("insert", "contains", "forget", "remove", "claim", "commit", "release")
HOT = [DEFAULT_PATH, *(f"{FILTERS_PATH}/news/{command}" for command in COMMANDS)]
OTHERS = [
    ("GET", DEFAULT_PATH),
    ("POST", DEFAULT_PATH + "/"),
    ("POST", f"{FILTERS_PATH}/news/insert/"),
    ("POST", f"{FILTERS_PATH}/news/insert%0A"),
    ("POST", f"{FILTERS_PATH}/a%20name/insert"),
    ("POST", f"{FILTERS_PATH}/{'n' * 65}/insert"),
    ("POST", f"{FILTERS_PATH}/a%2Fb/insert"),
    ("POST", f"{FILTERS_PATH}/news/reclaim"),
    ("POST", f"{FILTERS_PATH}/news/unknown"),
    ("GET", f"{FILTERS_PATH}/news"),
]


@pytest.fixture
def service():
    """A service whose application has not started, so that it fails where it would ask Redis."""
    known = (
        TokenSettings(name="all", digest=tokens.digest(TOKEN), access="write"),
        TokenSettings(name="reader", digest=tokens.digest(READER)),
    )
    return Service(ServiceSettings.model_construct(tokens=known, path=DEFAULT_PATH, limits=Limits(body=1024)))


def ask(app, method, path, headers=None, content=b""):
    """Ask an application without a server."""

    async def asking():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers, content=content)

    return asyncio.run(asking())


def direct(service):
    """Return the short way, before FastAPI, as the application has it."""
    app = make_app(service.settings)
    return lambda *request: ask(app, *request)


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
def test_both_ways_answer_alike(service, path, headers, content, status):
    """An error has the same status, headers and body as by FastAPI's route; one that is a bug is answered, too."""
    short = direct(service)("POST", path, headers, content)
    long = ask(make_api(service), "POST", path, headers, content)
    assert (short.status_code, long.status_code) == (status, status)
    assert short.json() == long.json()
    assert short.headers.items() >= long.headers.items()


def test_bugs_reach_the_log(service):
    """An exception that is nobody's fault but ours is answered, and raised for the server's log."""

    async def asking():
        transport = httpx.ASGITransport(make_app(service.settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.post(INSERT, headers=BEARER, content=BODY)

    with pytest.raises(AssertionError):
        asyncio.run(asking())


def led(service, method, path):
    """Whether the short way leaves a request to others."""
    left = []

    async def others(scope, receive, send):
        left.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def told(request, error):
        raise error

    ask(FastPath(service, others, told), method, path)
    return bool(left)


@pytest.mark.parametrize("path", HOT)
def test_what_takes_the_short_way(service, path):
    """Requests about items do."""
    assert not led(service, "POST", path)


@pytest.mark.parametrize(("method", "path"), OTHERS)
def test_what_is_left_to_fastapi(service, method, path):
    """Everything else is: other methods, other paths, and names that cannot be a filter's."""
    assert led(service, method, path)
