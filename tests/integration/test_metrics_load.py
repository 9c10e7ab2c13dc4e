"""What the service tells of its load, its tokens and its restores."""

from __future__ import annotations

import os
import platform
import signal

import pytest
from support.metrics import Metrics, workers
from support.servers import wait_until
from support.service import Service, ask, request

from urifilter_redis import UriFilter, __version__
from urifilter_redis.service import tokens

NEWS = {"capacity": 1000, "seed": 1}


@pytest.fixture
def news(any_server):
    with UriFilter.create("news", redis=any_server.url, **NEWS) as made:
        yield made


def insert(path: str, *items: str) -> bytes:
    return request("POST", path, b'{"filter_typeid": "news", "URI_list": ["%s"]}' % "".join(items).encode())


@pytest.mark.slow
def test_requests_by_token_and_filter(any_server, news):
    """Each is counted under the names of its token and its filter, if they exist. Versions are told."""
    made = {name: tokens.new() for name in ("writer", "reader")}
    known = [
        tokens.Token("writer", tokens.digest(made["writer"]), ("news",), "write"),
        tokens.Token("reader", tokens.digest(made["reader"]), ("*",), "read"),
    ]
    with Service(any_server.url, settings="\n".join(each.toml() for each in known)) as service:
        for number in range(3):
            ask(service, "POST", "/v1/filters/news/insert", {"items": [number]}, made["writer"])
        ask(service, "GET", "/v1/filters/news", token=made["reader"])
        ask(service, "POST", "/v1/filters/news/insert", {"items": [1]}, made["reader"])
        ask(service, "POST", "/v1/filters/else/contains", {"items": [1]}, made["reader"])
        ask(service, "GET", "/v1/filters/news", token="a stranger's")
        wanted = {
            ("writer", "news", "200"): 3,
            ("reader", "news", "200"): 1,
            ("reader", "", "403"): 1,
            ("reader", "", "404"): 1,
            ("", "", "401"): 1,
        }

        def found() -> dict[tuple[str, str, str], float | None]:
            now = Metrics(service, made["reader"])
            name = "urifilter_token_requests_total"
            return {key: now(name, token=key[0], filter=key[1], status=key[2]) for key in wanted}

        wait_until(lambda: found() == wanted, "they are not counted")
        last = Metrics(service, made["reader"])
    told = "".join(map(str, last))
    assert "stranger" not in told
    assert not any(each in told for each in made.values())
    assert last("urifilter_build_info", version=__version__, python=platform.python_version()) == 1
    assert (last("urifilter_workers"), last("urifilter_worker_restarts_total")) == (1, 0)


@pytest.mark.slow
def test_what_is_in_flight(make_server):
    """Open connections are counted, requests that Redis holds up, and those that wait for others or for a pipeline."""
    server = make_server("redis70")
    UriFilter.create("news", redis=server.url, **NEWS).close()
    names = ("connections", "requests_in_flight", "requests_waiting", "requests_queued")

    def load() -> tuple[float | None, ...]:
        found = Metrics(service)
        return tuple(found(f"urifilter_{name}") for name in names)

    settings = "[limits]\nrequests = 4\nwait = 60\n"
    with Service(server.url, settings=settings) as service, service.raw() as idle:
        assert idle.ask(request("GET", "/healthz")).status == 200
        ask(service, "GET", "/v1/filters/news")  # it is open
        wait_until(lambda: load() == (2, 1, 0, 0), "the one that asks is not counted alone")
        server.suspend()
        held = [service.raw() for _ in range(6)]
        try:
            for number, connection in enumerate(held):
                connection.send(insert(service.path, str(number)))
            # Four of them run, two wait for these; of the four two are under way, and the others want a pipeline. So
            # does the look at the filters for the metrics, before it is given up.
            wait_until(lambda: (now := load())[:3] == (8, 7, 2) and now[3] >= 2, f"not so: {load()}")
            server.resume()
            assert [connection.answer().status for connection in held] == [200] * 6
        finally:
            server.resume()
            for connection in held:
                connection.close()
        wait_until(lambda: load() == (2, 1, 0, 0), "they stay")


@pytest.mark.slow
def test_a_worker_that_dies(any_server, news):
    """It is counted, and what it had in flight is not told any more."""
    with Service(any_server.url, "--workers", "2") as service:
        first = workers(service)[0]
        before = Metrics(service)("urifilter_worker_restarts_total")
        wait_until(lambda: Metrics(service)("urifilter_workers") == 2, "they do not tell of themselves")
        idle = [service.raw() for _ in range(20)]
        for each in idle:
            assert each.ask(request("GET", "/healthz")).status == 200
        wait_until(lambda: Metrics(service)("urifilter_connections") == 21, "not all connections are counted")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: f"Child process [{first}] died" in service.log(), "it does not die")
        for each in idle:
            each.close()
        wait_until(lambda: Metrics(service)("urifilter_worker_restarts_total") > before, "it is not counted")
        wait_until(lambda: Metrics(service)("urifilter_workers") == 2, "the dead one counts")
        wait_until(lambda: Metrics(service)("urifilter_connections") == 1, "its connections count")


@pytest.mark.slow
def test_how_far_a_restore_has_come(any_server):
    """The shards that are not restored yet are counted, also while nobody can open the filter."""
    names = ("restoring", "restoring_shards", "shards")

    def progress() -> tuple[float | None, ...]:
        found = Metrics(service)
        return tuple(found(f"urifilter_filter_{name}", filter="large") for name in names)

    def metas() -> list[bytes]:
        return sorted(admin.scan_iter("urifilter:{large:*:meta"))

    with (
        UriFilter.create("large", redis=any_server.url, capacity=1000, shards=4),
        Service(any_server.url) as service,
        any_server.client() as admin,
    ):
        wait_until(lambda: progress() == (0, 0, 4), "it is not told of")
        for count in (4, 1):
            for number, meta in enumerate(metas()):
                admin.hset(meta, "phase", "restoring" if number < count else "idle")
            wait_until(lambda count=count: progress() == (1, count, 4), "no progress", patience=60)
    with Service(any_server.url) as service:  # which cannot open it
        wait_until(lambda: progress() == (1, 1, 4), "no progress")
