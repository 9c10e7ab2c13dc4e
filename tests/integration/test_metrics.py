"""What the service tells of itself: metrics that are right over several workers, load, health, and readiness."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import time

import pytest
from support.in_flight import Holder
from support.metrics import Metrics, with_gauges
from support.servers import silent_port, wait_until
from support.service import NEWS, Service, alone, ask, known, request, workers

from urifilter_redis import ConfigMismatch, UriFilter, __version__
from urifilter_redis.service import tokens

TWO = ("--workers", "2")


def insert(service, items, name="news", connections=1) -> int:
    """Insert items over so many connections; return how many were new."""
    new = 0
    for number in range(connections):
        answer = ask(service, "POST", service.path, {"filter_typeid": name, "URI_list": items[number::connections]})
        assert answer.status == 200, answer
        new += answer.json()["unique"]
    return new


def answered(service, name="news") -> tuple[int, int]:
    told = ask(service, "GET", f"/v1/filters/{name}").json()["answered"]
    return told["new"], told["seen"]


@pytest.fixture
def news(make_filter):
    return make_filter(**NEWS)


# counters


@pytest.mark.slow
def test_counts_over_workers(any_server, news):
    """New and seen are exact over both workers and all connections, whichever is asked, and after a kill -9."""
    with Service(any_server.url, *TWO) as service:
        first, second = workers(service)
        with alone(service, first):
            assert insert(service, list(range(50)), connections=10) == 50
            assert Metrics(service).items() == (50, 0)
        with alone(service, second):
            assert Metrics(service).items() == (50, 0)
            assert insert(service, list(range(30, 70)), connections=8) == 20
            assert insert(service, ["x", "x", "x"]) == 1
            ask(service, "POST", "/v1/filters/news/contains", {"items": [1, 2, "nobody's"]})
            ask(service, "POST", "/v1/filters/news/insert", {"items": [1, "y"]})
        for each in (first, second):
            with alone(service, each):
                found = Metrics(service)
                assert (found.items("insert"), found.items("contains")) == ((72, 23), (1, 2))
                wait_until(lambda: answered(service) == (73, 25), "they do not agree")
        os.kill(second, signal.SIGKILL)
        third = workers(service, 3)[2]
        with alone(service, third):
            assert Metrics(service).items() == (72, 23)
            assert insert(service, list(range(60, 90)), connections=6) == 20
        for each in (first, third):
            with alone(service, each):
                assert Metrics(service).items() == (92, 33)
                wait_until(lambda: answered(service) == (93, 35), "they do not agree")
        assert news.info().inserted == 92


@pytest.mark.slow
def test_requests_and_their_times(any_server, news):
    """Each request is counted once, by command, status and error code, and its time; over both workers."""
    with Service(any_server.url, *TWO) as service:
        both = workers(service)
        before = Metrics(service).requests()
        for worker in both:
            with alone(service, worker):
                assert insert(service, list(range(20)), connections=20) in {20, 0}
                for name in ("nobody", "else"):
                    ask(service, "POST", service.path, {"filter_typeid": name, "URI_list": []})
                ask(service, "POST", service.path, {"URI_list": []})
                ask(service, "GET", "/v1/filters")
                ask(service, "GET", "/nowhere")
                ask(service, "PUT", "/v1/filters")
                ask(service, "POST", "/v1/filters/news/remove", {"items": ["a"]})
        wanted = {
            ("insert", "200", ""): 40,
            ("insert", "404", "filter_not_found"): 4,
            ("insert", "422", "bad_request"): 2,
            ("list", "200", ""): 2,
            ("other", "404", "not_found"): 2,
            ("other", "405", "method_not_allowed"): 2,
            ("remove", "409", "not_for_this_filter"): 2,
        }

        def new() -> dict[tuple[str, str, str], float]:
            now = Metrics(service).requests()
            return {key: value - before.get(key, 0) for key, value in now.items() if key in wanted}

        with contextlib.suppress(TimeoutError):  # a request is counted when its answer has been sent
            wait_until(lambda: new() == wanted, "they are not counted", patience=10)
        assert new() == wanted
        found = Metrics(service)
        for command, count in (("insert", 46), ("list", 2), ("remove", 2)):
            buckets = {
                float(dict(pairs)["le"]): value
                for (name, *pairs), value in dict.items(found)
                if name == "urifilter_request_seconds_bucket" and dict(pairs)["command"] == command
            }
            assert [value for _, value in sorted(buckets.items())] == sorted(buckets.values())
            assert buckets[float("inf")] == count
            assert found("urifilter_request_seconds_count", command=command) == count
            assert 0 < found("urifilter_request_seconds_sum", command=command) < 60 * count


@pytest.mark.slow
def test_what_nobody_knows_makes_no_labels(any_server, news):
    """Names of filters that there are not, paths, methods, headers and tokens do not become series."""
    with Service(any_server.url) as service:
        insert(service, ["a"])
        for number in range(10):
            odd = f"odd-{number}"
            statuses = [
                ask(service, "POST", service.path, {"filter_typeid": odd, "URI_list": ["a"]}).status,
                ask(service, "POST", service.path, {"filter_typeid": odd + "?", "URI_list": ["a"]}).status,
                ask(service, "POST", f"/v1/filters/{odd}/contains", {"items": ["a"]}).status,
                ask(service, "POST", f"/v1/filters/news/{odd}", {"items": ["a"]}).status,
                ask(service, "GET", f"/v1/filters/{odd}").status,
                ask(service, "GET", f"/{odd}").status,
                ask(service, f"ODD{number}", "/metrics").status,
            ]
            assert (statuses[0], set(statuses)) == (404, {400, 404, 405, 422} & set(statuses))
        found = Metrics(service)
    assert "odd" not in "".join(map(str, found)).lower()
    assert found.values("filter") == {"", "news"}
    assert found.values("token") == {""}
    assert found.values("command") <= {"insert", "contains", "info", "other"}
    assert found.values("status") <= {"200", "400", "404", "405", "422"}


@pytest.mark.slow
def test_script_errors(make_server):
    """What Redis refuses is counted by its first word."""
    server = make_server("redis70")
    UriFilter.create("news", redis=server.url, **NEWS).close()
    with Service(server.url) as service, server.client() as admin:
        insert(service, ["a"])
        before = Metrics(service)

        def more(word) -> float:
            return (found("urifilter_script_errors_total", word=word) or 0) - (
                before("urifilter_script_errors_total", word=word) or 0
            )

        admin.script_flush()
        assert insert(service, ["a", "b"]) == 1
        found = Metrics(service)
        assert more("NOSCRIPT") == 1
        admin.config_set("maxmemory", 1)
        answer = ask(service, "POST", service.path, {"filter_typeid": "news", "URI_list": ["c"]})
        assert (answer.status, answer.json()["error_code"]) == (507, "server_full")
        assert "nothing was changed; raise maxmemory" in answer.json()["error"]
        found = Metrics(service)
        assert (more("NOSCRIPT"), more("OOM") > 0) == (1, True)
        look = ask(service, "POST", "/v1/filters/news/contains", {"items": ["a", "c"]})
        assert look.json()["ages"] == [1, 0]
        admin.config_set("maxmemory", 0)
        assert insert(service, ["c"]) == 1


# gauges


def at(server, **fields) -> None:
    """Let times of all shards be so many seconds earlier."""
    with server.client() as admin:
        for key in admin.scan_iter("*:meta"):
            for name, seconds in fields.items():
                if admin.hexists(key, name):
                    admin.hincrby(key, name, -1000 * seconds)


@pytest.mark.slow
def test_gauges(any_server, folder):
    """Each filter's are what the library says of it; ages are counted by the server's clock."""
    url = any_server.url
    rolling = {"retention": "rolling", "slices": 3, "period": "1d", "archive": folder}
    with (
        UriFilter.create("full", redis=url, capacity=100, seed=1) as full,
        UriFilter.create("pages", redis=url, **NEWS, **rolling) as pages,
        UriFilter.create("empty", redis=url, **NEWS) as empty,
    ):
        full.insert_many(list(range(150)))
        pages.insert_many(list(range(50)))
        pages.rotate()
        pages.rotate()
        pages.insert_many(list(range(50, 70)))
        pages.checkpoint()
        at(any_server, opened=90_000, checkpointed=5000)
        began = any_server.ask("time")[0]
        with Service(url, "--archive", folder) as service:
            found = with_gauges(service, "full", "pages", "empty")
        ended = any_server.ask("time")[0] + 1
        infos = {each.name: each.info() for each in (full, pages, empty)}
    for name, info in infos.items():
        gauges = {
            "up": 1,
            "items": info.inserted,
            "capacity_items": info.capacity,
            "fill_ratio": info.fill,
            "error_rate_now": info.error_rate_now,
            "error_rate_promised": info.error_rate,
            "over_capacity": int(info.over_capacity),
            "used_ratio": info.inserted / info.capacity,
            "shards": 1,
            "restoring_shards": 0,
            "restored_unacknowledged": 0,
            "has_archive": int(name == "pages"),
            "period_seconds": 86_400 if name == "pages" else None,
            "epoch": info.epoch,
            "restoring": 0,
        }
        assert {gauge: found(f"urifilter_filter_{gauge}", filter=name) for gauge in gauges} == gauges
        assert found("urifilter_filter_memory_bytes", filter=name) > 0
    assert [infos[name].over_capacity for name in ("full", "pages", "empty")] == [True, False, False]
    assert found("urifilter_filter_error_rate_now", filter="full") > 1e-4
    assert found("urifilter_filter_error_rate_now", filter="empty") == 0
    assert (found("urifilter_filter_epoch", filter="pages"), infos["pages"].inserted) == (2, 70)
    for gauge, then in (
        ("checkpoint_age", infos["pages"].checkpointed),
        ("rotation_age", infos["pages"].live_slices[0].opened),
    ):
        age = found(f"urifilter_filter_{gauge}_seconds", filter="pages")
        assert began - 1 <= then + age <= ended + 1
        assert age >= (4999 if gauge == "checkpoint_age" else 89_999)
        for name in ("full", "empty"):  # never
            assert found(f"urifilter_filter_{gauge}_seconds", filter=name) is None
    due = found("urifilter_filter_rotation_due_seconds", filter="pages")
    assert began - 1 <= infos["pages"].next_rotation - due <= ended + 1
    assert due <= 86_400 - 89_999  # it is late
    assert found("urifilter_filter_rotation_due_seconds", filter="full") is None


@pytest.mark.slow
def test_what_is_in_flight(any_server, news):
    """It is counted, and what has lapsed; of a filter without claims there is neither."""
    names = ("in_flight_items", "lapsed_items", "delayed_items", "holders", "lease_seconds", "dead_letters")

    def told() -> list[float | None]:
        with Service(any_server.url) as service:
            found = with_gauges(service, "news")
            age = found("urifilter_filter_oldest_lapse_seconds", filter="news")
            return [*(found(f"urifilter_filter_{name}", filter="news") for name in names), age]

    assert told() == [None] * 7
    one = Holder(news, lease=60)
    one.claim(range(30))
    assert told() == [30, 0, 0, 1, 60, 0, 0]
    one.release(range(10))
    *counts, age = told()
    assert counts == [20, 10, 0, 1, 60, 0]
    assert age > 0
    with news.claims() as mine:
        mine.claim_many([*"abcde"])
        mine.reject([*"abcde"], "404")
        news.retry_dead_letters(["a", "b"])
        assert told()[-2] == 3


@pytest.mark.slow
def test_a_filter_that_cannot_be_looked_at(any_server, news):
    """It is down, has no other gauges, and those of the others are there."""
    with UriFilter.create("broken", redis=any_server.url, **NEWS), Service(any_server.url) as service:
        insert(service, ["a"], "broken")
        any_server.ask("hset", "urifilter:{broken:0}:meta", "slices", "nonsense")
        # until then it has what it measured before that
        wait_until(lambda: ask(service, "GET", "/v1/filters/broken/detail").status != 200, "it is up", patience=60)
        found = wait_until(
            lambda: (now := with_gauges(service, "news"))("urifilter_filter_up", filter="broken") == 0 and now,
            "it is up",
        )
        gauges = {name for name, *pairs in found if ("filter", "broken") in pairs}
        assert gauges == {"urifilter_filter_up", "urifilter_items_total", "urifilter_token_requests_total"}
        assert found("urifilter_filter_up", filter="news") == 1
        assert found("urifilter_filter_capacity_items", filter="news") == 1000
    assert "broken" in service.log()


# who may ask, and when Redis is away


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_metrics_in_an_outage(make_server):
    """Redis hangs, or is killed: each filter is down with the figures that were found out last, whichever worker tells.

    All within the seconds that somebody who scrapes has.
    """
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    for name in ("news", "other"):
        UriFilter.create(name, redis=server.url, **NEWS).close()
    with Service(server.url, *TWO) as service:
        both = workers(service)
        assert with_gauges(service, "news")("urifilter_filter_items", filter="news") == 0
        insert(service, ["a", "b"])
        with alone(service, both[0]):
            found = wait_until(
                lambda: (now := Metrics(service))("urifilter_filter_items", filter="news") == 2 and now,
                "not counted",
                patience=60,
            )
            assert found("urifilter_redis_up") == 1
        figures = {key: value for key, value in found.items_of_filters() if key[0] != "urifilter_filter_up"}
        assert {name for name, *_ in figures} >= {"urifilter_filter_capacity_items", "urifilter_filter_fill_ratio"}
        for away in (server.suspend, server.kill):
            away()
            for worker in both:
                with alone(service, worker):
                    began = time.monotonic()
                    found = Metrics(service)
                    assert time.monotonic() - began < 10  # Prometheus's own patience
                    assert (found("urifilter_redis_up"), found.items()) == (0, (2, 0))
                    assert [found("urifilter_filter_up", filter=name) for name in ("news", "other")] == [0, 0]
                    now = dict(found.items_of_filters())
                    assert {key: now.get(key) for key in figures} == figures
            if away == server.suspend:
                server.resume()
                wait_until(lambda: Metrics(service)("urifilter_redis_up") == 1, "it does not see that Redis is there")
                wait_until(lambda: Metrics(service)("urifilter_filter_up", filter="news") == 1, "not up again")
        server.start()
        wait_until(lambda: ask(service, "GET", "/readyz").status == 200, "it does not get ready")
        assert insert(service, ["a", "b", "c"]) == 1
        assert Metrics(service).items() == (3, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_metrics_without_redis_from_the_start(make_server):
    """The filters of the settings are down, and so is Redis."""
    server = make_server("redis70")
    server.kill()
    with Service(server.url, settings="[filters.news]\ncapacity = 1000\n") as service:
        found = Metrics(service)
        assert (found("urifilter_redis_up"), found("urifilter_filter_up", filter="news")) == (0, 0)
        assert found("urifilter_archive_up") is None
        assert found("urifilter_filter_fill_ratio", filter="news") is None


@pytest.mark.slow
def test_metrics_without_the_archive(any_server, news):
    """It is down, and Redis and its filters are not."""
    archive = f"mongodb://127.0.0.1:{silent_port()}/urifilter?serverSelectionTimeoutMS=200"
    with Service(any_server.url, "--archive", archive) as service:
        found = with_gauges(service, "news")
        assert found("urifilter_archive_up") == 0
        assert found("urifilter_filter_up", filter="news") == 1


@pytest.mark.slow
def test_metrics_before_the_archive_has_answered(any_server):
    """Its first question is still under way: the archive is not up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        archive = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/urifilter?serverSelectionTimeoutMS=2000"
        with Service(any_server.url, "--archive", archive) as service:
            assert Metrics(service)("urifilter_archive_up") == 0


def replace_news(any_server) -> None:
    """Put another filter in the place of the one of the settings, which the service may make anew at any moment."""
    while True:
        any_server.ask("flushall")
        with contextlib.suppress(ConfigMismatch):
            UriFilter.create("news", redis=any_server.url, capacity=2000).close()
            return


@pytest.mark.slow
def test_ready_when_the_filters_of_the_settings_are(any_server):
    """A filter that somebody replaced by one with other settings: not ready, and it is said why; until it is mended."""
    with Service(any_server.url, settings="[filters.news]\ncapacity = 1000\n") as service:
        assert ask(service, "GET", "/readyz").status == 200
        replace_news(any_server)
        answer = ask(service, "POST", service.path, {"filter_typeid": "news", "URI_list": ["a"]})
        assert (answer.status, answer.json()["error_code"]) == (409, "config_mismatch")
        answer = ask(service, "GET", "/readyz")
        assert (answer.status, answer.json()["error_code"]) == (503, "not_ready")
        assert "capacity is 2000 and not 1000" in answer.json()["error"]
        any_server.ask("flushall")
        assert ask(service, "GET", "/readyz").status == 200
        assert insert(service, ["a"]) == 1


@pytest.mark.slow
def test_requests_by_token_and_filter(any_server, news):
    """Each is counted under the names of its token and its filter, if they exist. Versions are told."""
    made = {name: tokens.new() for name in ("writer", "reader")}
    settings = known("writer", made["writer"], "write", ["news"]) + known("reader", made["reader"])
    with Service(any_server.url, settings=settings) as service:
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
def test_connections_and_requests(make_server):
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
                body = b'{"filter_typeid": "news", "URI_list": ["%d"]}' % number
                connection.send(request("POST", service.path, body))
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
def test_the_folder_of_the_counts_is_removed(any_server, news, tmp_path):
    """The service goes on, also when a worker dies then."""
    with Service(any_server.url, *TWO, TMPDIR=str(tmp_path)) as service:
        first, second = workers(service)
        [found] = tmp_path.glob("urifilter-metrics-*")
        files = [each.stat() for each in found.glob("*.db")]
        assert len(files) == 9
        assert all(each.st_blocks * 512 >= each.st_size > 0 for each in files)
        shutil.rmtree(found)
        for each in (first, second):
            with alone(service, each):
                assert Metrics(service)("urifilter_workers") is None
        os.kill(first, signal.SIGKILL)
        third = workers(service, 3)[2]
        with alone(service, third):
            assert Metrics(service)("urifilter_redis_up") == 1
            assert insert(service, ["a"]) == 1
        assert service.log().count("the metrics leave out what process ") == 2
        assert "Traceback" not in service.log()


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
