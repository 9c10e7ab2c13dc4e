"""Claims over HTTP: the answers, the limits, and the tokens that keep holders apart."""

from __future__ import annotations

import collections
import json

import pytest
from support.metrics import Metrics
from support.servers import Server
from support.service import Service, ask, known, request

from urifilter_redis import UriFilter
from urifilter_redis.bloom.digest import shard_of
from urifilter_redis.service import tokens

HOLDER, OTHER = "0123456789abcdef", "fedcba9876543210"


class Caller:
    """Asks a service about the filter ``news``, with a token and a holder."""

    def __init__(self, service, holder=HOLDER, token=None) -> None:
        self.service, self.more, self.token = service, {"holder": holder, "lease": 60}, token

    def __call__(self, command, status=200, **body):
        answer = ask(self.service, "POST", f"/v1/filters/news/{command}", self.more | body, self.token)
        assert answer.status == status, answer.body
        content = answer.json()
        return {name: each for name, each in content.items() if name != "filter"}


def items(answer):
    return sorted(each["item"] for each in answer["claims"])


def listed(service, name, token=None, status=200, **query):
    """Return the answer of a list, in as many answers as it comes."""
    text = "&".join(f"{field}={value}" for field, value in query.items())
    answer = ask(service, "GET", f"/v1/filters/news/{name}?{text}", token=token)
    assert answer.status == status, answer.body
    return answer.json()


def pages(service, name, limit):
    """Return the items of all pages of a list."""
    found, more = [], {}
    while True:
        told = listed(service, name, limit=limit, **more)
        assert len(told[name]) <= limit
        found += told[name]
        if "next" not in told:
            return found
        assert len(told[name]) == limit
        more = {"after": told["next"]}


@pytest.mark.parametrize("shards", [3, 128])
def test_pages_of_lists(service, any_server, shards):
    """Each item stands in one page, though many were rejected in one millisecond, in several shards."""
    settings = {"redis": any_server.url, "capacity": 100_000, "error_rate": 1e-8, "shards": shards}
    with UriFilter.create("news", **settings) as news, news.claims() as others:
        others.claim_many(range(60))
        for start in range(0, 40, 20):
            others.reject(range(start, start + 20), "404")
        for limit in (1, 7, 100):
            found = pages(service, "dead_letters", limit)
            assert sorted(each["item"] for each in found) == [*range(40)]
            times = [each["at"] for each in found]
            assert times == sorted(times, reverse=True)
            assert sorted(each["item"] for each in pages(service, "in_flight", limit)) == [*range(40, 60)]
        assert "next" not in listed(service, "in_flight", limit=20)
        first = listed(service, "dead_letters", limit=30)
        news.retry_dead_letters([first["dead_letters"][-1]["item"]])  # the place stays, though its note is gone
        assert len(listed(service, "dead_letters", limit=30, after=first["next"])["dead_letters"]) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"after": "news"}, {"after": "1-abc"}, {"after": "0" * 60}, {"of": "a"}]
)
@pytest.mark.parametrize("name", ["in_flight", "dead_letters"])
def test_pages_that_there_cannot_be(service, news, name, query):
    """They are refused; a place behind the end is none."""
    assert listed(service, name, status=422, **query)["error_code"] == "bad_request"
    assert listed(service, name, after="999999999-" + "0" * 48).keys() == {"filter", name}


def test_retrying_dead_letters(service, news):
    """Some items, those in base64 included, or all; nothing else."""

    def under(key, body):
        with service.raw() as connection:
            return connection.ask(request("POST", path, json.dumps(body).encode(), Idempotency_Key=key)).json()

    with news.claims() as others:
        others.claim_many(["a", "b", "c", b"odd\xff", "in flight"])
        others.reject(["a", "b", "c", b"odd\xff"], "404")
        odd = next(each for each in listed(service, "dead_letters")["dead_letters"] if "item_base64" in each)
        path = "/v1/filters/news/retry_dead_letters"
        body = {"items": ["a", odd["item_base64"], "in flight", "never"], "base64": [1]}
        told = {"filter": "news", "was_there": [True, True, False, False], "total": 4, "offered": 2}
        for _ in range(2):  # under its key it may be repeated
            assert under("once more", body) == told
        assert ask(service, "POST", path, {"items": []}).json()["offered"] == 0
        assert sorted(each["item"] for each in listed(service, "dead_letters")["dead_letters"]) == ["b", "c"]
        for key, count in (("one", 2), ("one", 0), ("two", 0)):  # all of them have no answer of their own
            told = under(key, {"items": None} if count else {})
            assert told == {"filter": "news", "was_there": [], "total": 0, "offered": count}
        for wrong in ({"base64": [0]}, {"items": "a"}, {"items": ["a"], "base64": [1]}, {"reason": ""}):
            assert ask(service, "POST", path, wrong).json()["error_code"] == "bad_request"
        assert {each.item for each in others.reclaim()} == {"a", "b", "c", b"odd\xff"}


@pytest.mark.slow
def test_what_json_cannot_carry(service, news):
    """Bytes come as text, where they are UTF-8, and else as base64, in which they go back, too."""
    given = [b"text", b"odd\xff", "\ud83d\ude00", "\ud800"]
    with news.claims() as others:
        assert others.claim_many(given, payload=lambda item: b"\x00\xfe" if item == b"text" else None) == [True] * 4
    caller = Caller(service)
    found = caller("reclaim")["claims"]
    assert {json.dumps({n: v for n, v in each.items() if n.startswith("item")}) for each in found} == {
        '{"item": "text"}', '{"item_base64": "b2Rk/w=="}', '{"item_base64": "7aC97biA"}', '{"item": "\\ud800"}',
    }  # fmt: skip
    assert [each["payload_base64"] for each in found if each.get("item") == "text"] == ["AP4="]
    back = caller("release", items=["b2Rk/w==", "text"], base64=[0], failed=True)
    assert back["was_there"] == [True, True]
    assert [each["failures"] for each in caller("reclaim")["claims"]] == [1, 1]
    done = caller("commit", items=["text", "b2Rk/w==", "7aC97biA", "\ud800"], base64=[1, 2])
    assert done["committed"] == [True] * 4
    assert caller("beat") == {"in_flight": 0}
    assert news.contains_many(given) == [True] * 4


@pytest.mark.parametrize(
    ("command", "body", "code", "said"),
    [
        ("claim", {"items": ["a"], "payloads": []}, "bad_request", "payloads: 0 for 1 items"),
        ("claim", {"items": ["a"], "holder": None}, "bad_request", "holder"),
        ("claim", {"items": ["a"], "holder": "0123"}, "bad_request", "holder"),
        ("claim", {"items": ["a"], "lease": 4.9}, "bad_request", "lease"),
        ("claim", {"items": ["a"], "lease": 3601}, "bad_request", "lease"),
        ("claim", {"items": ["a"], "base64": [0]}, "bad_request", "there is no field 'base64'"),
        ("claim", {"items": ["a"] * 10_001}, "too_many_items", "at most 10,000"),
        ("claim", {"items": ["a", "x" * 65_537]}, "item_too_long", "65,536"),
        ("claim", {"items": ["a", "b"], "payloads": [1, "x" * 65_537]}, "bad_item", "its payload has 65537 bytes"),
        ("commit", {"items": ["a"], "reason": "", "holder": None}, "bad_request", "only a holder"),
        ("release", {"items": ["a"], "reason": ""}, "bad_request", "there is no field 'reason'"),
        ("commit", {"items": ["a"], "base64": [1]}, "bad_request", "there is no item 1"),
        ("commit", {"items": ["YQ==", "YQ=="], "base64": [1, 0, 1]}, "bad_request", "a position comes twice"),
        ("commit", {"items": ["a"], "base64": ["", ""]}, "bad_request", "base64.0"),
        ("commit", {"items": [7], "base64": [0]}, "bad_item", "item 0 is no base64"),
        ("commit", {"items": ["ä"], "base64": [0]}, "bad_item", "item 0 is no base64"),
        ("release", {"items": ["a"], "delay": 604801}, "bad_request", "delay"),
        ("release", {"items": ["a"], "failed": 1}, "bad_request", "failed"),
        ("reclaim", {"limit": 101}, "bad_request", "limit"),
        ("reclaim", {"items": []}, "bad_request", "there is no field 'items'"),
        ("beat", {"holder": "not hex digits !"}, "bad_request", "holder"),
    ],
)
def test_what_is_refused(service, news, command, body, code, said):
    """Bodies that nobody can mean; nothing is done."""
    refused = Caller(service)(command, 422, **body)
    assert refused["error_code"] == code
    assert said in refused["error"]
    assert refused["error"].count("base64.") <= 1  # a long list of nonsense has no long answer
    if code == "bad_item":
        assert refused["indices"] == [len(body["items"]) - 1]
    assert news.contains_many(["a", "b"]) == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["00000000000000aa/3/7", "any text"])
def test_a_repeat_by_another_worker(service, news, any_server, key):
    """Under its Idempotency-Key each request gets the answer that it had; a reclaim what its holder still has of it."""

    def under_key(worker, command, **body):
        content = json.dumps({"holder": HOLDER, "lease": 60} | body).encode()
        with worker.raw() as connection:
            said = request("POST", f"/v1/filters/news/{command}", content, Idempotency_Key=f"{key}")
            answer = connection.ask(said)
        assert answer.status == 200, answer.body
        return answer.json()

    uris = [f"https://example.com/{i}" for i in range(600)]
    with Service(any_server.url) as another:
        workers = [service, another, service]
        claimed = [under_key(each, "claim", items=uris, payloads=[7] * 600) for each in workers]
        assert [each["unique"] for each in claimed] == [600] * 3
        committed = [under_key(each, "commit", items=uris[:300]) for each in workers]
        assert [each["unique"] for each in committed] == [300] * 3
        released = [under_key(each, "release", items=uris[290:400]) for each in workers]
        assert [each["was_there"] for each in released] == [[False] * 10 + [True] * 100] * 3
        reclaimed = [items(under_key(each, "reclaim", limit=90)) for each in workers]
        assert reclaimed[0] == reclaimed[1] == reclaimed[2]
        assert len(reclaimed[0]) == 90
        news.commit(reclaimed[0][:40])
        again = items(under_key(another, "reclaim", limit=90))
        assert set(reclaimed[0][40:]) <= set(again)
        assert not set(reclaimed[0][:40]) & set(again)
        assert len(again) <= 90
    assert Caller(service)("beat") == {"in_flight": 200 + len(again)}


def test_a_key_for_other_claims(service, news):
    """It is refused, whichever shards have the items of both requests; a repeat of the first is answered as before."""
    digests = {f"item {n}": news._session.digester([f"item {n}"])[0] for n in range(60)}
    by_shard = {shard_of(digest, news.config.shards): item for item, digest in digests.items()}
    assert len(by_shard) == news.config.shards > 2

    def under_key(command, shard):
        content = json.dumps({"holder": HOLDER, "lease": 60, "items": [by_shard[shard]]}).encode()
        with service.raw() as connection:
            said = request("POST", f"/v1/filters/news/{command}", content, Idempotency_Key="some words")
            return connection.ask(said)

    for command, field in (("claim", "claimed"), ("release", "was_there"), ("commit", "committed")):
        first = under_key(command, 2)
        assert first.json()[field] == [True], first.body
        refused = under_key(command, 1)
        assert (refused.status, refused.json()["error_code"]) == (409, "refused"), refused.body
        assert under_key(command, 2).json() == first.json()
    assert news.contains_many([by_shard[1], by_shard[2]]) == [False, True]


@pytest.mark.parametrize("shards", [3, 40])
def test_a_repeated_reclaim_tells_the_old_items_first(service, make_filter, shards):
    """The holder has them in flight, and new ones that lapsed meanwhile in other shards may use up the limit."""
    news = make_filter(shards=shards)
    with news.claims() as others, service.raw() as connection:
        for number in range(1, 10):
            content = json.dumps({"holder": HOLDER, "lease": 60, "limit": 1}).encode()
            said = request("POST", "/v1/filters/news/reclaim", content, Idempotency_Key=f"00000000000000aa/3/{number}")
            others.claim(str(number))
            others.release([str(number)])
            assert items(connection.ask(said).json()) == [str(number)]
            more = [f"{number} {i}" for i in range(20)]
            others.claim_many(more)
            others.release(more)
            assert items(connection.ask(said).json()) == [str(number)]
            news.commit([str(number), *more])


WRITER, SECOND, READER = (tokens.new() for _ in range(3))
TOKENS = known("one", WRITER, "write") + known("two", SECOND, "write") + known("reader", READER)


@pytest.fixture(scope="module")
def guarded():
    """A service with tokens, over a server of its own."""
    with Server("redis70") as redis, Service(redis.url, settings=TOKENS) as service:
        service.redis = redis
        yield service
        assert not [each for each in (WRITER, SECOND, READER, HOLDER) if each in service.log()]


@pytest.fixture
def served(guarded):
    guarded.redis.client().flushall()
    with UriFilter.create("news", redis=guarded.redis.url, capacity=1000, shards=3) as made:
        yield made


@pytest.mark.slow
def test_two_tokens(guarded, served):
    """With the same holder in the request they are two holders, and none of them is the one in the request."""
    one, two = (Caller(guarded, token=token) for token in (WRITER, SECOND))
    assert one("claim", items=["a", "b"])["unique"] == 2
    assert two("claim", items=["a", "c"])["ages"] == [-1, 0]
    assert two("beat") == {"in_flight": 1}
    assert two("release", items=["a", "b"])["was_there"] == [False, False]
    assert two("reclaim")["claims"] == []
    assert one("beat") == {"in_flight": 2}
    holders = {
        holder.hex()
        for key in guarded.redis.client().keys("*holders")
        for holder in guarded.redis.client().zrange(key, 0, -1)
    }
    assert len(holders) == 2
    assert HOLDER not in holders
    assert two("commit", items=["a"])["committed"] == [True]  # its page was fetched, whoever has it in flight
    assert one("commit", items=["a"])["committed"] == [False]
    assert one("release", items=["b"])["was_there"] == [True]


def test_what_is_outstanding_in_a_part(service, make_filter):
    """It is null until all shards were looked at, and these are so many that one reclaim does not."""
    many = make_filter("many", shards=40)
    with many.claims() as others:
        others.claim_many(range(200))
    body = {"holder": HOLDER, "lease": 60, "limit": 1}
    found = ask(service, "POST", "/v1/filters/many/reclaim", body).json()
    assert (found["total"], found["outstanding"]) == (1, None)


def test_what_is_outstanding_in_a_repeat(service, make_filter):
    """What the first attempt found was this holder's by then: it is not taken from what others have."""
    news = make_filter("news", shards=2)
    with news.claims() as theirs, news.claims() as others:
        theirs.claim_many(range(20))
        theirs.release(range(20))
        others.claim_many(["b", "c"])
        body = {"holder": HOLDER, "lease": 60}
        answers = []
        for _ in range(2):
            with service.raw() as connection:
                keyed = request("POST", "/v1/filters/news/reclaim", json.dumps(body).encode(), Idempotency_Key='"one"')
                answers.append(connection.ask(keyed).json())
        assert [(each["total"], each["outstanding"]["others"]) for each in answers] == [(20, 2)] * 2


@pytest.mark.slow
def test_without_a_holder(guarded, served):
    """A commit needs none. A release does if there are tokens, because it would give back what others have."""
    one = Caller(guarded, token=WRITER)
    one("claim", items=["a", "b"])
    two = Caller(guarded, holder=None, token=SECOND)
    refused = two("release", 403, items=["a"])
    assert (refused["error_code"], "name the holder" in refused["error"]) == ("forbidden", True)
    assert two("commit", items=["a"])["committed"] == [True]
    assert one("beat") == {"in_flight": 1}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["claim", "commit", "release", "reclaim", "beat"])
def test_reading_is_not_enough(guarded, served, command):
    """Whoever claims writes."""
    body = {} if command in {"reclaim", "beat"} else {"items": ["a"]}
    assert Caller(guarded, token=READER)(command, 403, **body)["error_code"] == "forbidden"
    assert Caller(guarded)(command, 401, **body)["error_code"] == "unauthorized"


@pytest.mark.slow
def test_lists_are_for_those_who_may_claim(guarded, served):
    """They have what claimants keep, and holders by the names that no token's holder can be told from."""
    one, path = Caller(guarded, token=WRITER), "/v1/filters/news/retry_dead_letters"
    one("claim", items=["a", "b"], payloads=["secret", None])
    one("commit", items=["a"], reason="404")
    for name in ("in_flight", "dead_letters"):
        assert listed(guarded, name, READER, 403)["error_code"] == "forbidden"
        assert listed(guarded, name, None, 401)["error_code"] == "unauthorized"
        assert [each["item"] for each in listed(guarded, name, SECOND)[name]] == ["b" if name == "in_flight" else "a"]
    assert listed(guarded, "in_flight", SECOND)["in_flight"][0]["holder"] != HOLDER
    assert ask(guarded, "POST", path, {}, READER).json()["error_code"] == "forbidden"
    assert ask(guarded, "POST", path, {}).json()["error_code"] == "unauthorized"
    assert ask(guarded, "POST", path, {}, SECOND).json()["offered"] == 1


@pytest.mark.slow
def test_metrics(service, news):
    """Claims are counted as the items of other commands are."""

    def counted():
        found = [(key[0], dict(key[1:]), count) for key, count in dict.items(Metrics(service))]
        counts = [each for each in found if each[0] == "urifilter_items_total" and each[1]["filter"] == "news"]
        return collections.Counter({f"{of['command']} {of['answer']}": count for _, of, count in counts})

    before, caller = counted(), Caller(service)
    caller("claim", items=["a", "b", "a"])
    caller("release", items=["a"])
    caller("reclaim")
    caller("commit", items=["a", "b"])
    wanted = {"claim new": 2, "claim seen": 1, "release seen": 1, "reclaim new": 1, "commit new": 2}
    assert counted() - before == wanted
