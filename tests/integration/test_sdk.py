"""The SDK against the service, and against what goes wrong on the way to it."""

from __future__ import annotations

import collections
import http.server
import inspect
import json
import re
import threading
import time
from types import SimpleNamespace

import pytest
from support.proxy import HttpProxy
from support.servers import wait_until

from urifilter_redis import Claim, Timeouts
from urifilter_redis.errors import FilterAPIError
from urifilter_redis.http_api import ATTEMPT_HEADER
from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPI, FilterAPIClient, claims_backend
from urifilter_redis.sdk import api as sdk_api


@pytest.mark.slow
def test_one_call(service, news, monkeypatch):
    """``FilterAPI`` answers the new ones in their order, each once; address and token may be the environment's."""
    uris = ["b", "a", "b", {"x": [1, None]}, "\ud800", 1.5]
    monkeypatch.setenv("URIFILTER_API_URL", service.url)
    assert FilterAPI("news", uris) == {
        "filter_typeid": "news",
        "URI_list_unique": ["b", "a", {"x": [1, None]}, "\ud800", 1.5],
        "total": 6,
        "unique": 5,
    }
    assert FilterAPI("news", uris, url=service.url)["URI_list_unique"] == []
    assert FilterAPI("news", []) == {"filter_typeid": "news", "URI_list_unique": [], "total": 0, "unique": 0}


def test_what_the_service_knows(api, news):
    """The service counts what it has answered."""
    before = counts(api.info("news"))
    api.insert_many("news", ["a", "b", "a"])
    api.unique("news", ["a", "c"])
    assert api.filters() == ["news"]
    info = wait_until(lambda: known(api, before), "what is known is never renewed")
    assert (info["filter"], info["info"]["capacity"]) == ("news", 100_000)
    assert info["info"]["inserted"] == 3
    assert counts(info) - before == {"new": 3, "seen": 2}


def counts(info) -> collections.Counter[str]:
    return collections.Counter(info["answered"])


def known(api, before):
    """What is known of the filter, once it was found out after ``before``."""
    info = api.info("news")
    return info if info["info"]["inserted"] and counts(info) != before else None


def test_both_clients_are_alike():
    """Same methods, same arguments."""
    names = [name for name in vars(FilterAPIClient) if not name.startswith("_")]
    assert names == [name for name in vars(AsyncFilterAPIClient) if not name.startswith("_")]
    for name in {*names, "__init__"} - {"unresolved"}:
        blocking, awaited = (inspect.signature(getattr(kind, name)) for kind in (FilterAPIClient, AsyncFilterAPIClient))
        assert blocking.parameters == awaited.parameters, name
        assert (blocking.return_annotation == awaited.return_annotation) is (name != "claims"), name


@pytest.mark.parametrize("url", ["localhost:8000", "redis://localhost", "http://", "http://[::1", ""])
def test_addresses_that_are_none(url, monkeypatch):
    """They are told at once."""
    monkeypatch.setenv("URIFILTER_API_URL", "nonsense")
    with pytest.raises(ValueError, match="the service's address is a URL such as"):
        FilterAPIClient(url)


class Scripted(http.server.ThreadingHTTPServer):
    """A server that answers POST requests as it is told, and keeps what they were."""

    def __init__(self, *answers) -> None:
        self.answers, self.seen = iter(answers), []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.server.seen.append((self.path, dict(self.headers), json.loads(body)))
                status, headers, content = next(self.server.answers)
                headers = {ATTEMPT_HEADER: self.headers[ATTEMPT_HEADER]} | headers
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    if value is not None:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *_) -> None:
        self.shutdown()
        self.server_close()


GOOD = (200, {}, {"filter": "news", "ages": [0], "total": 1, "unique": 1})


@pytest.mark.sampled
@pytest.mark.parametrize(
    "bad",
    [
        (503, {"Retry-After": "0"}, {"error_code": "server_unavailable", "error": "away"}),
        (503, {}, {"error_code": "answer_lost", "error": "away"}),
        (429, {}, {"error_code": "too_many_requests", "error": "wait"}),
        (408, {"Connection": "close"}, {"error_code": "too_slow", "error": "slow"}),
        (500, {}, {"error_code": "internal_error", "error": "a bug"}),
        (502, {}, b"<html>Bad Gateway</html>"),
        (504, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, b""),
        (200, {ATTEMPT_HEADER: "another"}, GOOD[2]),
        (404, {ATTEMPT_HEADER: "another"}, {"error_code": "filter_not_found", "error": "none"}),
        (200, {}, b'{"ages": [0'),
        (200, {}, b"[]"),
    ],
)
def test_what_is_repeated(bad):
    """Everything temporary, and every answer that is not this request's, under the same key."""
    with Scripted(bad, bad, GOOD, GOOD) as server, FilterAPIClient(server.url, "secret") as api:
        assert api.insert_ages("news", ["a"]) == [0]
        assert api.insert_ages("news", ["b"]) == [0]
    keys = [headers["Idempotency-Key"] for _, headers, _ in server.seen]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert re.fullmatch(r"[0-9a-f]{16}/0/1", keys[0])
    assert keys[3] == keys[0][:-1] + "2"
    assert {headers["Authorization"] for _, headers, _ in server.seen} == {"Bearer secret"}
    assert {path for path, _, _ in server.seen} == {"/v1/filters/news/insert"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "bad_json"), (401, "unauthorized"), (403, "forbidden"), (404, "filter_not_found"), (409, "refused"),
     (413, "body_too_large"), (422, "bad_item"), (507, "filter_full"), (507, "server_full"), (503, "slice_lost"),
     (503, "restoring")],
)  # fmt: skip
def test_what_is_not_repeated(status, code):
    """Everything that asking again would not mend: an error at once, with code, status and what the service says."""
    answer = (status, {}, {"error_code": code, "error": "do this", "indices": [2]})
    with (
        Scripted(answer) as server,
        FilterAPIClient(server.url) as api,
        pytest.raises(FilterAPIError, match="do this") as told,
    ):
        api.unique("news", ["a"])
    assert (told.value.status, told.value.error_code, told.value.indices) == (status, code, [2])
    assert len(server.seen) == 1


@pytest.mark.parametrize(("status", "code"), [(422, "too_many_items"), (413, "body_too_large")])
def test_what_is_too_much_is_halved(status, code):
    """And later calls send as little from the beginning; one item is refused for good."""
    refusal = (status, {}, {"error_code": code, "error": "send several"})
    with Scripted(refusal, GOOD, GOOD, GOOD, GOOD, refusal) as server, FilterAPIClient(server.url) as api:
        assert api.insert_ages("news", ["https://example.com/a", "https://example.com/b"]) == [0, 0]
        assert api.insert_ages("news", ["https://example.com/c", "https://example.com/d"]) == [0, 0]
        with pytest.raises(FilterAPIError, match="send several"):
            api.insert_ages("news", ["e"])
    sent = ["".join(uri[-1] for uri in body["items"]) for _, _, body in server.seen]
    assert sent == ["ab", "a", "b", "c", "d", "e"]


@pytest.mark.sampled
@pytest.mark.parametrize("status", [301, 401, 404, 413])
def test_somebody_else_answers(status):
    """A proxy or a wrong address: an error at once; whether the request went on is not known, so its key is kept."""
    html = (status, {ATTEMPT_HEADER: None}, b"<html>nginx</html>")
    with Scripted(html, GOOD, GOOD) as server, FilterAPIClient(server.url) as api:
        with pytest.raises(FilterAPIError, match="somebody else than the service") as told:
            api.unique("news", ["a"])
        assert (told.value.status, told.value.error_code) == (status, "bad_response")
        assert api.unique("news", ["b"]) == ["b"]
        assert api.unique("news", ["a"], retry=told.value) == ["a"]
    slots = [headers["Idempotency-Key"].split("/")[1:] for _, headers, _ in server.seen]
    assert slots == [["0", "1"], ["1", "1"], ["0", "1"]]


def test_a_gateway_that_replaces_the_name_of_a_request():
    """As Envoy does by default: an answer is this attempt's all the same."""
    with Scripted((200, {"X-Request-Id": "of-a-gateway"}, GOOD[2])) as server, FilterAPIClient(server.url) as api:
        assert api.insert_ages("news", ["a"]) == [0]
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("status", "content"), [(200, GOOD[2]), (401, {"error_code": "unauthorized", "error": "send a token"})]
)
def test_a_gateway_that_removes_the_proof(status, content):
    """The error says at once what is missing. The key is kept, for the request may have run."""
    with Scripted((status, {ATTEMPT_HEADER: None}, content), GOOD) as server, FilterAPIClient(server.url) as api:
        with pytest.raises(FilterAPIError, match=f"no header {ATTEMPT_HEADER}") as told:
            api.insert_ages("news", ["a"])
        assert told.value.error_code == "bad_response"
        assert api.insert_ages("news", ["a"], retry=told.value) == [0]
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.seen}) == 1


@pytest.mark.parametrize(
    "content", [{"error_code": "forbidden"}, {"error_code": "forbidden", "error": 1, "indices": 7, "ages": "x"}]
)
def test_odd_refusals(content):
    """What an error lacks is left out."""
    with (
        Scripted((403, {}, content)) as server,
        FilterAPIClient(server.url) as api,
        pytest.raises(FilterAPIError) as told,
    ):
        api.unique("news", ["a"])
    assert (told.value.error_code, told.value.indices) == ("forbidden", [])


@pytest.mark.sampled
@pytest.mark.parametrize("ages", [None, [], [0, 0], "0", {"0": 0}])
def test_odd_answers(ages):
    """An answer that is not for these items is none, and the key is kept."""
    odd = (200, {}, {"filter": "news", "total": 1, "unique": 1, **({} if ages is None else {"ages": ages})})
    with Scripted(odd, GOOD) as server, FilterAPIClient(server.url) as api:
        with pytest.raises(FilterAPIError, match="not for these items") as told:
            api.unique("news", ["a"])
        assert told.value.error_code == "bad_response"
        assert api.unique("news", ["a"], retry=told.value) == ["a"]
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.seen}) == 1


def test_long_items_go_out_in_several_requests(api, news):
    """By their bytes, too: 100 items of 60,000 characters are no body that is too large."""
    uris = [f"{i}/{'ä' * 30_000}" for i in range(100)]
    assert api.unique("news", uris) == uris
    assert api.ages("news", uris) == [1] * 100


def test_refused_after_it_may_have_run():
    """A refusal after a lost answer does not say that nothing was inserted: ``answer_lost``, and the slot waits."""
    lost, refused = (502, {}, b""), (403, {}, {"error_code": "forbidden", "error": "no longer yours"})
    with Scripted(lost, refused, GOOD, GOOD) as server, FilterAPIClient(server.url) as api:
        with pytest.raises(FilterAPIError) as told:
            api.unique("news", ["a"])
        assert told.value.error_code == "answer_lost"
        assert api.unique("news", ["b"]) == ["b"]
        assert api.unique("news", ["a"], retry=told.value) == ["a"]
    slots = [headers["Idempotency-Key"].split("/")[1:] for _, headers, _ in server.seen]
    assert slots == [["0", "1"], ["0", "1"], ["1", "1"], ["0", "1"]]


def test_an_answer_that_is_not_kept_any_more_is_not_asked_for(monkeypatch):
    """Much time may pass between two attempts of one call, as on a machine that is suspended."""
    monkeypatch.setattr(sdk_api, "PROOF_LIFE", 0)
    with Scripted((502, {}, b""), GOOD) as server, FilterAPIClient(server.url) as api:
        with pytest.raises(FilterAPIError, match="and they are over") as told:
            api.unique("news", ["a"])
        assert (told.value.error_code, len(server.seen)) == ("answer_lost", 1)


def test_an_answer_that_is_lost_after_the_machine_was_suspended(monkeypatch):
    """Its time counts from the call, and not from when the process began."""
    later = SimpleNamespace(time=lambda: time.time() + 600)
    with Scripted((502, {}, b""), GOOD) as server, FilterAPIClient(server.url) as api:
        monkeypatch.setattr(sdk_api, "time", later)
        assert api.unique("news", ["a"]) == ["a"]


def test_a_connection_out_of_step(news, service):
    """Whoever between repeats an answer on a kept connection: no answer is taken for another's, good or bad."""

    class Stutter(HttpProxy):
        """Sends every second answer twice."""

        def _one(self, client, server, commands, replies):
            commands.frame()
            server.sendall(commands.raw)
            replies.frame()
            client.sendall(replies.raw)
            self.answered += 1
            if self.answered % 2:
                client.sendall(replies.raw)
            return True

    with Stutter(service.port) as between, FilterAPIClient(between.url) as api:
        for number in range(10):
            with pytest.raises(FilterAPIError) as missing:
                api.insert_many("missing", ["a"])
            assert missing.value.error_code in {"filter_not_found", "answer_lost"}  # if its first attempt got no answer
            assert api.unique("news", [f"a{number}", "b"])[0] == f"a{number}"
            assert api.ages("news", [f"a{number}", f"c{number}"]) == [1, 0]
    assert news.inserted() == 11


#: An answer of somebody between, to a request that the service may have done: final at once, and in doubt.
LOST = (401, {ATTEMPT_HEADER: None}, b"<html>of somebody else</html>")


def ages(*found):
    return 200, {}, {"filter": "news", "ages": [*found], "total": len(found), "unique": found.count(0)}


def test_a_request_in_doubt_is_not_cut():
    """Although the client has learnt meanwhile that the service takes less at once: new keys would tell "seen"."""
    much = (422, {}, {"error_code": "too_many_items", "error": "at most 2"})
    answers = (LOST, much, ages(0, 0), ages(0, 0), ages(0, 0, 0, 0))
    with Scripted(*answers) as server, FilterAPIClient(server.url) as api:
        with pytest.raises(FilterAPIError) as lost:
            api.insert_ages("news", [*"abcd"])
        assert api.insert_ages("news", [*"efgh"]) == [0] * 4
        assert api.insert_ages("news", [*"abcd"], retry=lost.value) == [0] * 4
    keys = [headers["Idempotency-Key"] for _, headers, _ in server.seen]
    assert (len(keys), keys[4]) == (5, keys[0])


def test_a_bug_of_the_service_is_in_doubt():
    """It may have inserted before it failed, so ``retry=`` asks under the same key."""
    bug = (500, {}, {"error_code": "internal_error", "error": "a bug"})
    with Scripted(*[bug] * 99) as server, FilterAPIClient(server.url, timeouts=Timeouts(total=0.3)) as api:
        with pytest.raises(FilterAPIError) as lost:
            api.insert_many("news", ["a"])
        assert lost.value.error_code == "answer_lost"
        server.answers = iter([ages(0)])
        assert api.insert_many("news", ["a"], retry=lost.value) == [True]
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.seen}) == 1


def test_a_reclaim_that_fails_half_way(monkeypatch):
    """What it was answered before is returned, with its counts."""
    monkeypatch.setattr(claims_backend, "RECLAIMED_A_CALL", 1)
    taken = {"item": "a", "payload": "A", "failures": 1, "lapses": 2}
    one = (200, {}, {"filter": "news", "claims": [taken], "total": 1, "outstanding": None})
    lost = (503, {}, {"error_code": "slice_lost", "error": "lost"})
    gone = (404, {}, {"error_code": "filter_not_found", "error": "none"})
    with Scripted(one, lost, gone) as server, FilterAPIClient(server.url) as api:
        mine = api.claims("news")
        assert mine.reclaim(5) == mine.held == [Claim("a", "A", failures=1, lapses=2)]
        mine.close()


@pytest.mark.parametrize(("status", "code"), [(507, "filter_full"), (409, "refused")])
def test_what_was_done_in_part_keeps_its_key(status, code):
    """Under another key the answer "new" that has arrived would become "seen"."""
    part = (status, {}, {"error_code": code, "error": "half done", "ages": [0, None]})
    with Scripted(part, ages(0, 0)) as server, FilterAPIClient(server.url) as api:
        with pytest.raises(FilterAPIError) as told:
            api.unique("news", ["a", "b"])
        assert (told.value.error_code, told.value.answers) == (code, [True, None])
        assert api.unique("news", ["a", "b"], retry=told.value) == ["a", "b"]
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.seen}) == 1


def test_claims_that_come_with_an_error_are_in_flight():
    part = (409, {}, {"error_code": "refused", "error": "half done", "ages": [0, None]})
    gone = (404, {}, {"error_code": "filter_not_found", "error": "none"})
    with Scripted(part, gone) as server, FilterAPIClient(server.url) as api:
        mine = api.claims("news")
        with pytest.raises(FilterAPIError):
            mine.claim_many(["a", "b"])
        assert mine.held == [Claim("a", "a")]
        mine.close()
