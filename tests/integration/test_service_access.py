"""Who asks the service: tokens and their use, refusals by address, wrong tokens, and the log of requests."""

from __future__ import annotations

import contextlib
import json
import re
import time

import pytest
from support.servers import wait_until
from support.service import NEWS, Service, ask, known, request

from urifilter_redis import UriFilter
from urifilter_redis.service import tokens

ACCESS = "/v1/access"


@pytest.fixture
def news(make_filter):
    return make_filter(**NEWS)


@pytest.fixture
def made():
    """Tokens: one for all filters, one for some, and one that nobody uses."""
    return {name: tokens.new() for name in ("all", "some", "idle")}


def settings(made, more="") -> str:
    filters = {"all": "*"}
    return more + "".join(known(name, token, filters=[filters.get(name, "news")]) for name, token in made.items())


def told(service, token) -> dict:
    answer = ask(service, "GET", ACCESS, token=token)
    assert answer.status == 200, answer
    return answer.json()


def refusals(service, token) -> dict[str, int]:
    return {each["address"]: each["count"] for each in told(service, token)["refusals"]}


@pytest.mark.slow
def test_last_use(any_server, news, made):
    """Of each token, in JSON and as a gauge; never a digest or a token."""
    with Service(any_server.url, settings=settings(made)) as service:
        assert ask(service, "GET", "/v1/filters", token=made["some"]).status == 200
        found = told(service, made["all"])
        by_name = {each["name"]: each for each in found["tokens"]}
        assert list(by_name) == ["all", "some", "idle"]
        assert by_name["idle"] == {"name": "idle", "filters": ["news"], "access": "read", "last_used": None}
        assert 0 <= found["now"] - by_name["some"]["last_used"] < 600
        assert by_name["some"]["last_used"] <= by_name["all"]["last_used"]
        text = ask(service, "GET", "/metrics", token=made["all"]).body.decode()
        gauge = "urifilter_token_last_used_timestamp_seconds"
        assert set(re.findall(rf'^{gauge}\{{token="(.*)"\}} ', text, re.MULTILINE)) == {"all", "some"}
        for secret in (*made.values(), *map(tokens.digest, made.values())):
            assert secret not in json.dumps(found) + text + service.log()


@pytest.mark.slow
def test_no_answer_has_a_seed(any_server, made):
    """Who knows the seed makes items that hide others: no answer, metric, page or line of the log has it."""
    seeds = {"words": "0123456789abcdef" * 2, "numbers": "3141592653"}
    hashes = {"words": "blake2b", "numbers": "mmh3"}
    for name, seed in seeds.items():
        UriFilter.create(name, redis=any_server.url, capacity=1000, hash=hashes[name], seed=seed).close()
    with Service(any_server.url, settings="log_requests = true\n" + known("ops", made["all"], "admin")) as service:
        paths = ask(service, "GET", "/openapi.json", token=made["all"]).json()["paths"]
        gets = [path for path, known in paths.items() if "get" in known]
        gets = {path.replace("{filter}", name) for path in gets for name in seeds}
        answers = [ask(service, "GET", path, token=made["all"]) for path in gets]
        assert {answer.status for answer in answers} == {200}
        for name, other in zip(seeds, reversed(seeds), strict=True):
            wrong = {"capacity": 1000, "hash": hashes[name], "seed": seeds[name].replace("1", "2")}
            answers.append(ask(service, "POST", f"/v1/filters/{name}/create", wrong, made["all"]))
            answers.append(ask(service, "POST", f"/v1/filters/{name}/union", {"sources": [other]}, made["all"]))
            assert {answer.json()["error_code"] for answer in answers[-2:]} == {"config_mismatch"}
        told_of = b"".join(answer.body for answer in answers).decode() + service.log()
        assert not any(seed in told_of for seed in seeds.values())


@pytest.mark.slow
def test_keys_belong_to_tokens(any_server, news, made):
    """The same Idempotency-Key of another token is another request: it answers, and blocks, nothing of the first."""
    writers = "".join(known(name, token, "write") for name, token in made.items())
    with Service(any_server.url, settings=writers) as service, service.raw() as connection:

        def ages(name, number, uri):
            key, content = f"0123456789abcdef/0/{number}", json.dumps({"items": [uri]}).encode()
            headers = {"Authorization": f"Bearer {made[name]}", "Idempotency_Key": key}
            return connection.ask(request("POST", "/v1/filters/news/insert", content, **headers)).json()["ages"]

        asked = [("all", 1, "a"), ("some", 1, "a"), ("some", 9, "b"), ("all", 1, "a"), ("all", 2, "c")]
        assert [ages(*each) for each in asked] == [[0], [1], [0], [0], [0]]


@pytest.mark.slow
def test_who_may_ask(any_server, news, made):
    """Only a token for all filters: addresses are nobody else's business."""
    with Service(any_server.url, settings=settings(made)) as service:
        for token, status, code in ((made["some"], 403, "forbidden"), (None, 401, "unauthorized")):
            answer = ask(service, "GET", ACCESS, token=token)
            assert (answer.status, answer.json()["error_code"]) == (status, code)
        assert refusals(service, made["all"]) == {"127.0.0.1": 2}


@pytest.mark.slow
def test_without_tokens(any_server, news):
    """There are none to tell of; who came through a proxy, or from a foreign page, is told."""
    with Service(any_server.url) as service, service.raw() as connection:
        assert connection.ask(request("GET", "/", Origin="https://example.com")).status == 403
        assert connection.ask(request("GET", "/", X_Forwarded_For="192.0.2.1")).status == 403
        assert connection.ask(request("GET", "/nowhere")).status == 404  # no refusal
        found = told(service, None)
        assert (found["tokens"], [each["count"] for each in found["refusals"]]) == ([], [2])


@pytest.mark.slow
def test_refusals_by_address(any_server, news, made):
    """Through proxies that are trusted; the entry before theirs may be made up and does not count."""
    proxies = 'trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]\n'
    with Service(any_server.url, settings=settings(made, proxies)) as service, service.raw() as connection:
        for header in ("192.0.2.1", "6.6.6.6, 192.0.2.1, 10.0.0.7", "2001:db8::1", "2001:db8::2", None):
            assert connection.ask(request("GET", "/v1/filters", X_Forwarded_For=header)).status == 401
        counts = {"192.0.2.1": 2, "2001:db8::/64": 2, "127.0.0.1": 1}
        assert refusals(service, made["all"]) == counts
        text = ask(service, "GET", "/metrics", token=made["all"]).body.decode()
        gauges = re.findall(r'^urifilter_address_refusals\{address="(.*)"\} (.*)$', text, re.MULTILINE)
        assert {address: float(count) for address, count in gauges} == counts


@pytest.mark.slow
def test_two_workers(any_server, news, made):
    """Whichever is asked tells of both, after a second at most."""
    with Service(any_server.url, "--workers", 2, settings=settings(made)) as service:
        for _ in range(20):
            assert ask(service, "GET", "/v1/filters").status == 401
        for _ in range(20):  # of both workers, most likely
            wait_until(lambda: refusals(service, made["all"]) == {"127.0.0.1": 20}, "they do not agree")


WRONG = request("GET", "/v1/filters", Authorization="Bearer nobody's")


@pytest.mark.slow
def test_guessing(any_server, news, made):
    """Answers to wrong tokens come at a pace, or with 429; a right token of the same address is answered meanwhile."""
    more, free = 'trusted_proxies = ["127.0.0.1"]\n[limits]\nwrong_tokens = 600\n', 600
    many = b"{" + b",".join(b'"access_token":"%d"' % number for number in range(32)) + b"}"
    with Service(any_server.url, settings=settings(made, more)) as service, contextlib.ExitStack() as stack:
        guesser, *others = (stack.enter_context(service.raw()) for _ in range(21))
        began = time.monotonic()
        for _ in range(free + 20):
            assert guesser.ask(WRONG).status == 401
        assert free + 20 <= free + 10 * (time.monotonic() - began) + 1
        for each in others:
            each.send(request("POST", service.path, many))
        for _ in range(5):
            assert ask(service, "GET", "/v1/filters", token=made["some"]).status == 200
        in_body = {"filter_typeid": "news", "URI_list": [], "access_token": made["all"]}
        assert ask(service, "POST", service.path, in_body).json()["error_code"] == "forbidden"  # it may only read
        answers = [each.answer() for each in others]
        codes = {(answer.status, answer.json()["error_code"]) for answer in answers}
        assert codes == {(401, "unauthorized"), (429, "too_many_wrong_tokens")}
        for answer in answers:
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.headers["connection"] == "close"
        assert guesser.ask(request("GET", "/v1/filters")).status == 401  # without a token, that is no guess
        assert guesser.ask(WRONG.replace(b"\r\n", b"\r\nX-Forwarded-For: 192.0.2.1\r\n", 1)).status == 401
        assert refusals(service, made["all"]) == {"127.0.0.1": free + 20 + 20 + 1 + 1, "192.0.2.1": 1}
        assert "127.0.0.1 sends many wrong tokens" in service.log()
        assert "192.0.2.1 sends" not in service.log()


@pytest.mark.slow
def test_log_of_requests(any_server, news, made):
    """A line a request, with the client behind the proxy, its name, route, filter and items; no URI and no token."""
    uri, more = (
        "https://example.com/secret?key=1",
        'log_requests = true\nlog_format = "json"\ntrusted_proxies = ["127.0.0.1"]\n',
    )
    with Service(any_server.url, settings=settings(made, more)) as service, service.raw() as connection:
        bearer = f"Bearer {made['some']}"
        asked = json.dumps({"items": [uri, "b"]}).encode()
        headers = {"Authorization": bearer, "X_Forwarded_For": "192.0.2.1", "X_Request_Id": "mine-1"}
        path = "/v1/filters/news/contains"
        assert connection.ask(request("POST", path, asked, **headers)).status == 200
        made_up = connection.ask(request("POST", f"/v1/filters/{made['some']}/contains", asked, Authorization=bearer))
        assert made_up.status == 403
        assert connection.ask(request("GET", f"/{uri}?access_token={made['some']}")).status == 404
        assert connection.ask(request("GET", "/v1/filters/news", Authorization=bearer)).status == 200
    lines = [json.loads(line) for line in service.log().splitlines()[1:]]
    lines = [line for line in lines if "route" in line and line["route"] != "/healthz"]
    fields = ["client", "request_id", "token", "method", "route", "status", "error_code", "filter", "items", "new"]
    route = "/v1/filters/{filter}/contains"
    assert [[line.get(name) for name in fields] for line in lines] == [
        ["192.0.2.1", "mine-1", "some", "POST", route, 200, "", "news", 2, 2],
        ["127.0.0.1", made_up.headers["x-request-id"], "some", "POST", route, 403, "forbidden", None, None, None],
        ["127.0.0.1", lines[2]["request_id"], "", "GET", "", 404, "not_found", None, None, None],
        ["127.0.0.1", lines[3]["request_id"], "some", "GET", "/v1/filters/{filter}", 200, "", "news", None, None],
    ]
    assert all(line["ms"] > 0 for line in lines)
    for secret in (*made.values(), "secret"):
        assert secret not in service.log()


@pytest.mark.slow
def test_a_secret_in_a_path(make_server, made):
    """A token that was put in the place of a filter's name is in no log and no metric, also while Redis is away."""
    secret, server = tokens.new()[:-1] + "-", make_server()
    more = 'log_requests = true\nlog_format = "json"\ntimeout = 1\n' + known("ops", made["all"], "admin")
    with UriFilter.create("news", redis=server.url, **NEWS) as news:
        uid = news.info().uid
    asked = [
        ("POST", "insert", {"items": ["a"]}),
        ("POST", "create", {"capacity": 1000}),
        ("POST", "drop", {"confirm": "news", "uid": uid}),
        ("PUT", "", {"capacity": 1000}),
        ("GET", "detail", None),
        ("GET", "", None),
    ]
    with Service(server.url, settings=more) as service:

        def ask_all(name, token):
            older = {"filter_typeid": name, "URI_list": ["a"]}
            answers = [ask(service, "POST", service.path, older, token)]
            for method, below, content in asked:
                path = f"/v1/filters/{name}/{below}".rstrip("/")
                answers.append(ask(service, method, path, content, token))
            return {each.status for each in answers}

        wait_until(lambda: ask(service, "GET", "/readyz").status == 200, "it is not ready")
        assert ask_all(secret, None) == {401}
        assert ask(service, "GET", f"/v1/filters/{secret}", token=made["all"]).status == 404
        assert ask(service, "POST", f"/v1/filters/{secret}/rotate", {"dry_run": True}, made["all"]).status == 404
        told = ask(service, "GET", "/metrics", token=made["all"]).body.decode()
        server.stop()
        assert ask_all(secret, made["all"]) <= {422, 503}
        assert ask_all("news", made["all"]) <= {422, 503}
        told += ask(service, "GET", "/metrics", token=made["all"]).body.decode()
        log = service.log()
    assert secret not in told + log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    audited = {(each["filter"], each["result"]) for each in lines if each["logger"].endswith("audit")}
    shape = "<53 characters, like a token>"
    assert {(shape, "unauthorized"), (shape, "filter_not_found"), ("news", "server_unavailable")} < audited
    outages = "".join(each["message"] for each in lines if each["logger"].endswith("outages"))
    assert shape in outages
