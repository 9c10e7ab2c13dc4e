"""``urifilter serve``: how it starts, what it serves, and how it ends."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest
from support import cli
from support.servers import free_port, wait_until
from support.service import NEWS_TABLE, Service, alone, ask, known, lives, make, request, workers

from urifilter_redis import UriFilter
from urifilter_redis.extras import how_to_get
from urifilter_redis.service import tokens

EXTRA = ("fastapi_swagger", "httptools", "prometheus_client", "pydantic_settings", "starlette", "uvicorn")
SERVER_PACKAGES = (*EXTRA, "fastapi", "pydantic")
DEFAULT_PATH = "/cr-clawr/uri_filter/api/uri_filter"


def unique(service, name, items, token=None, path=None) -> list:
    answer = ask(service, "POST", path or service.path, {"filter_typeid": name, "URI_list": items}, token)
    assert answer.status == 200, answer
    return answer.json()["URI_list_unique"]


def ages(service, name, items) -> list[int]:
    answer = ask(service, "POST", f"/v1/filters/{name}/contains", {"items": items})
    assert answer.status == 200, answer
    return answer.json()["ages"]


def asked_for(items) -> bytes:
    return request("POST", DEFAULT_PATH, json.dumps({"filter_typeid": "news", "URI_list": items}).encode())


def seen(url, name, items, **where) -> list[bool]:
    with UriFilter.open(name, redis=url, **where) as opened:
        return [age > 0 for age in opened.ages(items)]


def refused(*arguments, code=2, **env) -> str:
    """Run ``urifilter serve``, which must end by itself without having listened; return what it says."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("URIFILTER_")} | env
    out, text = cli.run("serve", "--port", port, *arguments, env=env, code=code)
    assert out == b""
    assert "listens" not in text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    return text


# settings


def test_wrong_settings(any_server, tmp_path):
    """It does not start: exit 2 with the name of each and what is allowed; no secret is told, no filter made."""
    file = tmp_path / "settings.toml"
    file.write_text(
        "x = 1\npath = ''\nlimits.item = 0\n[filters.a]\ncapacity = 0\n[[tokens]]\nname = 'a'\ndigest = 'hunter2'"
    )
    env = {"URIFILTER_REDIS_URL": any_server.url, "URIFILTER_SETTINGS": str(file), "URIFILTER_LIMITS__BODY": "1"}
    text = refused("--workers", "0", "--log-format", "xml", "--archive", "mongodb://me:hunter2@host", **env)
    names = ["workers", "log_format", "path", "x", "limits.item", "limits.body", "filters.a", "tokens.0", "archive"]
    assert [each for each in names if f"  {each}: " not in text] == []
    assert "hunter2" not in text
    assert any_server.ask("keys") == []


@pytest.mark.slow
def test_flags_beat_environment_beats_the_file(any_server, tmp_path):
    """On the command line as in the library; the environment may name the file, and a flag may say the default."""
    for prefix in ("env", "urifilter"):
        make(any_server.url, prefix, prefix=prefix)
    file = tmp_path / "settings.toml"
    file.write_text("redis_url = 'redis://toml'\nprefix = 'toml'\npath = '/toml'\n[limits]\nitems = 3\nitem = 5\n")
    env = {"URIFILTER_SETTINGS": str(file), "URIFILTER_REDIS_URL": any_server.url, "URIFILTER_PREFIX": "env"}

    def path(service):
        return next(each for each in ("/toml", "/env/x") if ask(service, "POST", each, {}).status != 404)

    with Service(None, URIFILTER_PATH="/env/x", URIFILTER_LIMITS__ITEMS="2", **env) as service:
        assert (path(service), ask(service, "GET", "/v1/filters").json()) == ("/env/x", {"filters": ["env"]})
        codes = [
            ask(service, "POST", "/v1/filters/env/insert", {"items": items}).json().get("error_code")
            for items in (["1", "2"], ["1", "2", "3"], ["123456"])
        ]
        assert codes == [None, "too_many_items", "item_too_long"]
    env["URIFILTER_REDIS_URL"] = "redis://env"
    with Service(any_server.url, "--prefix", "urifilter", **env) as service:
        assert (path(service), ask(service, "GET", "/v1/filters").json()) == ("/toml", {"filters": ["urifilter"]})
        assert unique(service, "urifilter", ["1", "2", "3"], path="/toml") == ["1", "2", "3"]


# filters


@pytest.mark.slow
def test_filters_of_settings_archive_and_redis(any_server, folder):
    """Those of the settings are made, or restored first; those of the archive alone and of Redis alone are served."""
    make(any_server.url, items=["a"], archive=folder)
    make(any_server.url, "archived", items=["b"], archive=folder)
    any_server.ask("flushall")
    make(any_server.url, "plain", items=["c"])
    fresh = "[filters.fresh]\ncapacity = 500\nretention = 'ring'\nslices = 3\nperiod = '1d'\n"
    with Service(any_server.url, "--archive", folder, settings=NEWS_TABLE + fresh) as service:
        assert seen(any_server.url, "news", ["a", "b"]) == [True, False]  # it is there, nobody had to ask for it
        with UriFilter.open("fresh", redis=any_server.url, archive=folder) as opened:
            assert (opened.info().capacity, opened.info().retention, opened.info().archive) == (500, "ring", folder)
        assert ask(service, "GET", "/v1/filters").json() == {"filters": ["archived", "fresh", "news", "plain"]}
        assert [ages(service, name, ["a", "b", "c"]) for name in ("news", "archived", "plain", "fresh")] == [
            [1, 0, 0],
            [0, 1, 0],
            [0, 0, 1],
            [0, 0, 0],
        ]
        assert unique(service, "archived", ["b", "d"]) == ["d"]
        make(any_server.url, "later", items=["e"])
        assert ages(service, "later", ["e", "f"]) == [1, 0]
        assert ask(service, "GET", "/readyz").status == 200


@pytest.mark.parametrize("where", ["Redis", "the archive"])
def test_filter_with_other_settings(where, any_server, folder, tmp_path):
    """The start is refused, naming the filter and each setting; nothing is changed."""
    make(any_server.url, items=["a"], archive=folder)
    if where == "the archive":
        any_server.ask("flushall")
    file = tmp_path / "settings.toml"
    file.write_text("[filters.news]\ncapacity = 2000\nlayout = 'classic'\nerror_rate = 1e-8\nnormalize = 'whatwg'\n")
    text = refused("--settings", file, "--redis", any_server.url, "--archive", folder)
    assert "'news'" in text
    for name, has, want in (
        ("capacity", 1000, 2000),
        ("layout", "blocked", "classic"),
        ("normalize", "none", "whatwg"),
    ):
        assert f"{name} is {has!r} and not {want!r}" in text
    assert "error_rate" not in text
    assert seen(any_server.url, "news", ["a", "b"], archive=folder) == [True, False]


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_redis_comes_later(make_server):
    """It warns, answers 503 within bounds, and serves as soon as Redis is there, without a restart."""
    server = make_server("redis70", requirepass="hunter2")
    server.kill()
    with Service(server.url, settings=NEWS_TABLE) as service:
        assert "answering 503 until it is back" in service.log()
        assert ask(service, "GET", "/healthz").status == 200
        with service.raw() as one, service.raw() as other:
            one.send(request("GET", "/readyz"))
            other.send(asked_for(["a"]))
            for answer in (one.answer(), other.answer()):
                assert (answer.status, answer.json()["error_code"]) == (503, "server_unavailable")
                assert int(answer.headers["retry-after"]) > 0
        server.start()
        wait_until(lambda: ask(service, "GET", "/readyz").status == 200, "it does not see that Redis is there")
        assert unique(service, "news", ["a", "b", "a"]) == ["a", "b"]
    assert "Traceback" not in service.log()
    assert "hunter2" not in service.log()


@pytest.mark.slow
def test_wrong_password(make_server):
    """It is told, without the password, and answered with 503; nobody is told the address of Redis."""
    server = make_server("redis70", requirepass="hunter2")
    with Service(server.url.replace("hunter2", "hunter3")) as service:
        assert "invalid username-password pair" in service.log()
        answer = ask(service, "GET", "/readyz")
        assert (answer.status, answer.json()["error_code"]) == (503, "server_unavailable")
        assert str(server.port) not in answer.json()["error"]
    assert "hunter" not in service.log()


# addresses


def test_the_port_is_taken(any_server):
    """Exit 2, and which address it was."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        out, err = cli.run("serve", "--redis", any_server.url, "--port", port, code=2)
    assert out == b""
    assert "already in use" in err
    assert f"('127.0.0.1', {port})" in err


def test_no_room_for_the_metrics(any_server):
    """It does not start: exit 2, and the text says why."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    arguments = ("serve", "--host", "127.0.0.1", "--port", "0", "--redis", any_server.url)
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # Python would leave a file of bytecode that was cut off
    _, text = cli.run_process(*arguments, code=2, preexec_fn=limited, env=env)
    assert re.search(r"the service did not start: no room for its metrics in \S+: \[Errno \d+\] File too large", text)


def test_an_address_of_another_machine(any_server, tmp_path):
    """Exit 2 with the address."""
    file = tmp_path / "settings.toml"
    file.write_text(known("one", "x"))
    assert "192.0.2.1" in refused("--settings", file, "--redis", any_server.url, "--host", "192.0.2.1")


@pytest.mark.slow
def test_ipv6(any_server):
    """It is told in brackets, so that it can be copied."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    process = cli.start("serve", "--redis", any_server.url, "--host", "::1", "--port", 0)
    try:
        found = re.fullmatch(rb"listens at http://\[::1\]:(\d+)\n", process.stderr.readline())
        with socket.create_connection(("::1", int(found[1]))) as connection:
            connection.sendall(request("GET", "/healthz", Host="[::1]", Connection="close"))
            assert connection.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


# workers


@pytest.mark.slow
def test_workers_end_with_their_parent(any_server, tmp_path):
    """When the parent is killed (-9) they end too, so that it can be started again at the same address."""
    make(any_server.url)
    with Service(any_server.url, "--workers", "2", TMPDIR=str(tmp_path)) as service:
        both = workers(service)
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(30)
        try:
            wait_until(lambda: not any(map(lives, both)), "workers stay behind", patience=10)
            with Service(any_server.url, "--port", service.port) as again:
                assert unique(again, "news", ["a"]) == ["a"]
        finally:
            service.kill()


# the end


def gone(service, processes) -> None:
    """Check that it has ended well, and that nothing is left of it."""
    assert service.process.wait(60) == 0, service.log()
    assert [each for each in processes if lives(each)] == []
    with pytest.raises(ConnectionRefusedError):
        service.raw()
    assert "Traceback" not in service.log()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_request_that_is_arriving_is_answered(count, any_server, tmp_path):
    """SIGTERM while its body is on the way: it ends with 0, after the answer; its folder of counts is removed."""
    make(any_server.url)
    more = {"TMPDIR": str(tmp_path), "URIFILTER_LIMITS__SECONDS": "60"}
    with Service(any_server.url, "--workers", count, **more) as service, service.raw() as connection:
        processes = workers(service, count)
        assert len(list(tmp_path.iterdir())) == 1
        data = asked_for(["a", "b"])
        connection.send(data[:-5])
        assert ask(service, "GET", "/healthz").status == 200  # by now the head has been read, if by the same worker
        if count > 1:
            for worker in processes:
                with alone(service, worker):
                    assert ask(service, "GET", "/healthz").status == 200
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.log().count("Shutting down") == count, "it does not begin to stop")
        connection.send(data[-5:])
        answer = connection.answer()
        assert (answer.status, answer.json()["URI_list_unique"]) == (200, ["a", "b"])
        assert connection.answer() is None
        gone(service, processes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_request_under_way_is_answered(any_server):
    """SIGTERM while Redis has it and does not answer: it ends with 0, after the answer."""
    make(any_server.url)
    with Service(any_server.url) as service, any_server.client() as admin, service.raw() as connection:
        admin.client_pause(120_000, all=False)
        try:
            connection.send(asked_for(["a"]))
            wait_until(lambda: admin.info("clients")["blocked_clients"] > 0, "it does not reach Redis")
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: service.log().count("Shutting down") == 1, "it does not begin to stop")
        finally:
            admin.client_unpause()
        answer = connection.answer()
        if answer.status == 503:  # so slow a machine that it was given up
            assert answer.json()["error_code"] == "answer_lost"
        else:
            assert (answer.status, answer.json()["URI_list_unique"]) == (200, ["a"])
        gone(service, [service.process.pid])
    assert "route=" not in service.log()  # no line for each request, as nobody wanted any
    assert seen(any_server.url, "news", ["a"]) == [True]


@pytest.mark.slow
def test_ctrl_c(any_server):
    """SIGINT, which a terminal sends to all of them: exit 0, no worker left, no traceback."""
    with Service(any_server.url, "--workers", "2") as service:
        processes = workers(service)
        os.killpg(service.process.pid, signal.SIGINT)
        gone(service, processes)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "seconds"), [(1, 0), (1, 0.002), (2, 0)])
def test_sigterm_at_the_very_start(count, seconds, any_server, tmp_path):
    """It ends, however early that comes: as soon as it has said that it listens, or a moment later."""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    process = cli.start(
        "serve", "--redis", any_server.url, "--port", 0, "--workers", count, env=env, start_new_session=True
    )
    try:
        assert process.stderr.readline().startswith(b"listens at ")
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode in {0, 128 + signal.SIGTERM, -signal.SIGTERM}
        assert b"Traceback" not in err
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_log_file_that_is_rotated(count, any_server, tmp_path):
    """After a rename and SIGHUP it goes on in a new one, of all processes; none of them is started again."""
    log, old = tmp_path / "serve.log", tmp_path / "serve.log.1"
    said = ("--log-file", log, "--workers", count, "--log-requests")
    with Service(any_server.url, *said) as service:
        wait_until(lambda: log.read_text().count("Application startup complete") == count, "they do not start")
        processes = list(map(int, re.findall(r"Started server process \[(\d+)\]", log.read_text())))
        log.rename(old)
        service.process.send_signal(signal.SIGHUP)
        told = {service.process.pid, *processes}
        wait_until(
            lambda: log.exists() and set(map(int, re.findall(r" (\d+) INFO SIGHUP", log.read_text()))) == told,
            "it is not made anew",
        )
        before = old.read_text()
        assert ask(service, "GET", "/healthz").status == 200
        wait_until(lambda: "route=/healthz" in log.read_text(), "nothing is logged")
        assert old.read_text() == before
        assert all(map(lives, told))
        assert "startup complete" not in log.read_text()


# logs


@pytest.fixture
def secrets():
    """Tokens, and the settings that know them."""
    made = {name: tokens.new() for name in ("one", "reader", "wrong")}
    return made, known("one", made["one"], "write") + known("reader", made["reader"], filters=["other"])


def ask_variously(service, secrets) -> None:
    """Send tokens wherever they can be sent."""
    one, reader, wrong = secrets["one"], secrets["reader"], secrets["wrong"]
    asked = {"filter_typeid": "news", "URI_list": ["a", "b"]}
    statuses = [
        ask(service, "POST", service.path, asked, one).status,
        ask(service, "POST", service.path, asked | {"access_token": one}).status,
        ask(service, "POST", service.path, asked | {"access_token": wrong}).status,
        ask(service, "POST", service.path, asked | {"access_token": [one]}).status,
        ask(service, "POST", service.path, asked, wrong).status,
        ask(service, "POST", service.path, asked, reader).status,
        ask(service, "POST", service.path, asked | {one: 1}, one).status,
        ask(service, "GET", f"/v1/filters?access_token={one}").status,
        ask(service, "GET", "/v1/filters", token=one).status,
    ]
    assert statuses == [200, 200, 401, 401, 401, 403, 422, 401, 200]


@pytest.mark.slow
def test_log_in_json(any_server, secrets):
    """Every line is JSON; one for each request has who asked what and how it went, and never a token."""
    make(any_server.url)
    said = ("--workers", "2", "--log-format", "json", "--log-requests")
    with Service(any_server.url, *said, settings=secrets[1]) as service:
        workers(service)
        ask_variously(service, secrets[0])
        assert ask(service, "GET", "/a%0Ab%22%7B").status == 404
    first, *rest = service.log().splitlines()
    assert first.startswith("listens at ")
    lines = [json.loads(line) for line in rest]
    for line in lines:
        assert list(line)[:4] == ["time", "level", "logger", "process"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert dt.datetime.fromisoformat(line["time"]).utcoffset() == dt.timedelta(0)
        assert isinstance(line["process"], int)
    told = [line for line in lines if "route" in line and line["route"] != "/healthz"]
    plain = ["client", "token", "method", "route", "status", "error_code"]
    assert sorted([line[name] for name in plain] for line in told) == sorted(
        [
            ["127.0.0.1", "one", "POST", service.path, 200, ""],
            ["127.0.0.1", "one", "POST", service.path, 200, ""],
            ["127.0.0.1", "", "POST", service.path, 401, "unauthorized"],
            ["127.0.0.1", "", "POST", service.path, 401, "unauthorized"],
            ["127.0.0.1", "", "POST", service.path, 401, "unauthorized"],
            ["127.0.0.1", "reader", "POST", service.path, 403, "forbidden"],
            ["127.0.0.1", "one", "POST", service.path, 422, "bad_request"],
            ["127.0.0.1", "", "GET", "/v1/filters", 401, "unauthorized"],
            ["127.0.0.1", "one", "GET", "/v1/filters", 200, ""],
            ["127.0.0.1", "", "GET", "", 404, "not_found"],
        ]
    )
    assert sorted([line[name] for name in ("filter", "items", "new")] for line in told if "items" in line) == [
        ["news", 2, 0],
        ["news", 2, 2],
    ]
    assert all(line["ms"] > 0 for line in told)
    for token in secrets[0].values():
        assert token not in service.log()


@pytest.mark.slow
def test_log_in_text(any_server, secrets):
    """A line for each request with --log-requests; never a token, and nothing of a path that there is not."""
    make(any_server.url)
    with Service(any_server.url, "--log-requests", settings=secrets[1]) as service:
        ask_variously(service, secrets[0])
        assert ask(service, "GET", "/x%0Aforged%0D%1B[31m%E2%80%A8").status == 404
    assert "forged" not in service.log()
    found = re.findall(rf"^.* {service.process.pid} INFO (client=.*) ms=[\d.]+(.*)$", service.log(), re.MULTILINE)
    heads = [(re.sub(r" request_id=\S+", "", head), tail) for head, tail in found if "route=/healthz" not in head]
    assert len(heads) == 10
    text = f"client=127.0.0.1 token=one method=POST route={service.path} status=200"
    assert (text, " filter=news items=2 new=2") in heads
    for token in secrets[0].values():
        assert token not in service.log()


# packages that are not there


def run_without(hidden, *arguments, code="from urifilter_redis.cli import main; main()"):
    """Run Python where packages are not installed; return its exit code, stdout and stderr."""
    text = f"import sys; sys.modules.update(dict.fromkeys({tuple(hidden)!r})); sys.argv = ['urifilter', *sys.argv[1:]]"
    command = [sys.executable, "-c", f"{text}\n{code}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("hidden", [SERVER_PACKAGES, ["httptools"]], ids=["all", "one"])
def test_packages_that_are_missing(hidden, any_server):
    """All of them, or any one of the extra: exit 2 and what to install, before anything listens."""
    code, out, err = run_without(hidden, "serve", "--redis", any_server.url, "--port", 0)
    assert (code, out) == (2, "")
    assert err.startswith(f"urifilter: serve needs more packages: {how_to_get('server')}")
    assert all(each in err for each in hidden if each in EXTRA)
    assert "Traceback" not in err


@pytest.mark.slow
def test_what_needs_no_packages(tmp_path):
    """A service is asked after and stopped without the server's packages, and all else is there without httpx."""
    code, _, err = run_without([*SERVER_PACKAGES, "httpx"], "serve", "stop", "--pidfile", tmp_path / "pid")
    assert (code, "does not run" in err) == (3, True)
    code, out, err = run_without([*SERVER_PACKAGES, "httpx"], "plan", "--capacity", "1000")
    assert (code, "blocked" in out, err) == (0, True, "")


@pytest.mark.slow
def test_the_sdk_needs_httpx_alone():
    """It loads nothing of the server's; the service and the rest of the library nothing of the SDK's, nor FastAPI."""
    loaded = f"print(sorted(set(sys.modules) & {{'httpx', *{SERVER_PACKAGES!r}}}))"
    code, out, err = run_without([], code=f"import urifilter_redis.sdk\n{loaded}")
    assert (code, out, err) == (0, "['httpx']\n", "")
    code, out, err = run_without(
        SERVER_PACKAGES, code="from urifilter_redis.sdk import FilterAPI, AsyncFilterAPIClient"
    )
    assert (code, out, err) == (0, "", "")
    code, out, err = run_without([], code=f"import urifilter_redis, urifilter_redis.cli\n{loaded}")
    assert (code, out, err) == (0, "[]\n", "")
    code, out, err = run_without(
        ["fastapi", "httpx"], code="import urifilter_redis.service.app, urifilter_redis.service.server"
    )
    assert (code, out, err) == (0, "", "")


def test_the_sdk_without_httpx():
    """It says what is missing."""
    code, out, err = run_without(["httpx"], code="import urifilter_redis.sdk")
    assert (code, out) == (1, "")
    assert f"the SDK needs httpx: {how_to_get('sdk')}" in err.splitlines()[-1]
