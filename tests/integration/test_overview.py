"""The overview of all filters over HTTP, and the samples that the service keeps for plots."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.servers import wait_until
from support.service import Service, ask, known

from urifilter_redis import UriFilter, drop_filter
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.protocol import acl
from urifilter_redis.service import tokens
from urifilter_redis.service.dashboard import Glance, Overview
from urifilter_redis.service.filters import Filters
from urifilter_redis.service.sampling import Sampler
from urifilter_redis.transport.connections import AsyncConnector, SharedConnector
from urifilter_redis.transport.url import Address

pytestmark = pytest.mark.slow

TWO = ("--workers", "2")
RATES = "urifilter:{news:0}:rates"


@pytest.fixture
def server(valkey):
    return valkey


@pytest.fixture
def redis(server):
    with server.client(decode_responses=True) as admin:
        yield admin


@pytest.fixture
def news(server, redis, make_filter):
    return make_filter(capacity=1000, seed=1)


def overview(service, token=None) -> dict:
    answer = ask(service, "GET", "/v1/overview", token=token)
    assert answer.status == 200, answer
    return answer.json()


def detail(service, name="news", token=None) -> dict:
    answer = ask(service, "GET", f"/v1/filters/{name}/detail", token=token)
    assert answer.status == 200, answer
    return answer.json()


def sampled(redis, key=RATES) -> dict[str, str]:
    return wait_until(lambda: redis.hgetall(key), "there is no sample")


def test_all_at_a_glance(server, redis, news):
    """One request tells of all filters; a filter that is lost has its problem in place of figures."""
    news.insert_many(range(850))
    with UriFilter.create("lost", redis=server.url, capacity=1000):
        redis.delete("urifilter:{lost:0}:today")
    timed = {"retention": "ring", "slices": 3, "period": "1d"}
    with UriFilter.create("ring", redis=server.url, capacity=1000, **timed) as ring, ring.claims() as mine:
        mine.claim_many(["a", "b"])
        with Service(server.url) as service:
            found = overview(service)
    lost, of_news, of_ring = found["filters"]
    info = news.info()
    assert lost == {"name": "lost", "problems": lost["problems"]}
    assert [(each["code"], each["level"]) for each in lost["problems"]] == [("slice_lost", "danger")]
    assert [each["code"] for each in of_news["problems"]] == ["near_capacity"]
    assert (of_news["items"], of_news["capacity"], of_news["full"]) == (info.inserted, 1000, info.inserted / 1000)
    assert (of_news["fill"], of_news["error_rate_now"], of_news["claims"]) == (info.fill, info.error_rate_now, None)
    assert (of_ring["claims"]["in_flight"], of_ring["claims"]["holders"], of_ring["period"]) == (2, 1, "1d")
    assert (found["access"], found["service"]["workers"]) == ("write", 1)
    (master,) = found["redis"]["masters"]
    assert master["version"].startswith("Valkey 9")
    assert {each["subject"]: each["level"] for each in found["redis"]["findings"]}["persistence"] == "danger"


def test_a_look_is_shared(server, redis, news):
    """Many who ask at once cost Redis one look."""

    async def ask_at_once() -> list[Glance]:
        timeouts = Timeouts()
        filters = Filters(SharedConnector(AsyncConnector(Address(server.url), timeouts), timeouts.total))
        seen = Overview(filters, Sampler(filters))
        found = await asyncio.gather(*(seen.look() for _ in range(20)))
        await filters.close()
        return found

    first, *others = asyncio.run(ask_at_once())
    assert list(first.rows) == ["news"]
    assert all(each is first for each in others)


def test_tokens(server, redis, news):
    """A token sees its filters alone, and Redis and the service only if it is for all."""
    UriFilter.create("pages", redis=server.url, capacity=1000).close()
    secrets = [tokens.new(), tokens.new()]
    settings = known("all", secrets[0], "write") + known("some", secrets[1], "read", ["news"])
    with Service(server.url, settings=settings) as service:
        assert ask(service, "GET", "/v1/overview").status == 401
        assert ask(service, "GET", "/v1/filters/news/detail").status == 401
        assert ask(service, "GET", "/v1/filters/pages/detail", token=secrets[1]).status == 403
        some, every = overview(service, secrets[1]), overview(service, secrets[0])
        assert ([each["name"] for each in some["filters"]], some["access"]) == (["news"], "read")
        assert some["redis"] is some["service"] is None
        assert ([each["name"] for each in every["filters"]], every["access"]) == (["news", "pages"], "write")
        assert every["redis"]["masters"]
        assert detail(service, token=secrets[1])["access"] == "read"


def test_samples(server, redis, news):
    """They are in Redis, the same from every worker and after a restart, and expire.

    There is one a minute, and another may begin at any time.
    """
    news.insert_many(range(10))
    with Service(server.url, *TWO) as service:
        before = sampled(redis)
        (uid, *_), *_ = map(json.loads, before.values())
        assert uid == news.info().uid
        assert 0 < redis.ttl(RATES) <= 25 * 3600
        first = detail(service)
        assert first["plots"]["hour"]["items"][:1] == [10]
        assert (first["plots"]["hour"]["speed"][:1], first["plots_refused"]) == ([None], "")
        told = [detail(service)["plots"]["hour"] for _ in range(5)]
    with Service(server.url) as service:
        told.append(detail(service)["plots"]["hour"])
    for plot in told:
        assert all(column[:1] == first["plots"]["hour"][name][:1] for name, column in plot.items())


def test_speeds(server, redis, news):
    """The speed and the time until a filter is full follow from the samples of the last hour."""
    with Service(server.url):
        (minute, text), *_ = sorted(sampled(redis).items())
    news.insert_many(range(600))
    uid, at, *rest = json.loads(text)
    redis.delete(RATES)
    redis.hset(RATES, str(int(minute) - 30), json.dumps([uid, at - 1800, *rest]))
    redis.hset(RATES, "1", json.dumps([uid, 60.0, *rest]))  # of another year
    redis.hset(RATES, "2", '["of another release"]')
    with Service(server.url) as service:
        (row,) = overview(service)["filters"]
        assert row["speed_in_hour"] == pytest.approx(600 / 1800, rel=0.05)
        assert row["full_in"] == pytest.approx(400 / row["speed_in_hour"], rel=0.05)
        wait_until(lambda: "1" not in redis.hgetall(RATES), "what is outdated stays")


def test_a_service_that_may_only_read(server, redis, news):
    """It keeps its samples in memory, says so, and tries in vain only once in a while."""
    url = f"redis://reader:PASSWORD@127.0.0.1:{server.port}/0"
    redis.execute_command(*acl.line("reader", "urifilter").split())
    try:
        with Service(url) as service:
            wait_until(lambda: detail(service)["plots"]["hour"]["at"], "there is no sample")
            found = detail(service)
            assert "NOPERM" in found["plots_refused"]
            assert set(found["plots"]["hour"]["items"]) == {0}
            assert overview(service)["redis"]["masters"] == []
            assert not redis.exists(RATES)
    finally:
        redis.acl_deluser("reader")


def test_drop(server, redis, news):
    """What is plotted goes with the filter."""
    with Service(server.url):
        sampled(redis)
    drop_filter("news", redis=server.url)
    assert redis.keys("urifilter*") == []
