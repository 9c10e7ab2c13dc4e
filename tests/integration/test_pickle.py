"""Clients go through pickle and can be copied: what comes out opens anew by address at its first call."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import pickle
import ssl
from concurrent.futures import ProcessPoolExecutor

import pytest
import redis
import redis.asyncio
from support.blocked import Clients

from urifilter_redis import (
    AnswerLost,
    BadItem,
    ConfigMismatch,
    FilterAPIError,
    FilterNotFound,
    ServerUnavailable,
    Timeouts,
    UriFilter,
    drop_filter,
)
from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPIClient

pytestmark = pytest.mark.slow

WAYS = {f"protocol {n}": lambda made, n=n: pickle.loads(pickle.dumps(made, n)) for n in range(2, 6)}
WAYS |= {"copy": copy.copy, "deepcopy": copy.deepcopy}
SETTINGS = {"capacity": 10_000, "error_rate": 1e-9, "shards": 3}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def insert(news, uris):
    """What a worker of a pool does."""
    return news.insert_ages(uris)


def insert_awaited(news, uris):
    async def inserted():
        async with news:
            return await news.insert_ages(uris)

    return asyncio.run(inserted())


def test_filter(way, server, clients):
    """It has the same settings and answers, and is a client of its own, in any event loop."""
    given = {"prefix": "x", "timeouts": Timeouts(total=7), "connections": 3, "rotate": "never"}
    news = clients.create("news", redis=server.url, near_cache=9, near_cache_seconds=5, **given, **SETTINGS)
    news.insert("a")
    again = clients.take(way(clients.made[0]))
    assert (again.name, again.server, again.config) == (news.name, news.server, news.config)
    assert again.insert_ages(["a", "b"]) == [1, 0]
    assert news.insert_ages(["b"]) == [1]
    assert again._session.timeouts == given["timeouts"]
    assert (again._session.keys.prefix, again._connector.connections) == ("x", 3)
    assert (again._session.rotation_timer.rotate, again.near_cache.limit, again.near_cache.seconds) == ("never", 9, 5)
    assert {name: getattr(again._options, name) for name in given} == given
    assert again._session.ids.client != news._session.ids.client
    third = way(clients.made[1])
    assert (insert_awaited if clients.awaited else insert)(third, ["b", "c"]) == [1, 0]


def test_nothing_is_asked_before_the_first_call(any_server):
    """So whatever is wrong is raised by a call, and not by the pool that hands the filter over."""
    packed = pickle.dumps(UriFilter.create("news", redis=any_server.url, **SETTINGS))
    drop_filter("news", redis=any_server.url)
    again = pickle.loads(packed)
    assert again.config.capacity == 10_000
    for _ in range(2):
        with pytest.raises(FilterNotFound):
            again.insert("a")
    again.close()


def test_another_filter_by_now(clients, any_server):
    """Another of the name, though its settings are the same, is refused each time, with both uids."""
    old = clients.create("news", redis=any_server.url, **SETTINGS)
    packed = pickle.dumps(old)
    drop_filter("news", redis=any_server.url)
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as new:
        for _ in range(2):
            again = clients.take(pickle.loads(packed))
            with pytest.raises(ConfigMismatch, match="dropped and created anew") as caught:
                again.insert("a")
            assert caught.value.differences == {"uid": (old.config.uid, new.config.uid)}
        assert new.contains("a") is False


def test_it_waits_for_replicas_too(clients, any_server):
    """No answer is believed that no replica has: the session of what was unpickled has the routes of its connector."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news:
        news.insert_many(range(20))  # loads the script
    opened = clients.open(redis=any_server.url, wait_replicas=1, timeouts=Timeouts(reply=0.2, total=0.2))
    with pytest.raises(AnswerLost, match="replicas have the answer"):
        clients.take(pickle.loads(pickle.dumps(opened))).insert("a")


@pytest.mark.parametrize("start", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_pool_of_processes(start, any_server):
    """Workers get the filter as an argument: each item is new once over all; errors come back whole."""
    news = UriFilter.create("news", redis=any_server.url, **SETTINGS)
    with Clients("asyncio") as clients:
        awaited = pickle.loads(pickle.dumps(clients.open(redis=any_server.url)))
    context = multiprocessing.get_context(start)
    with news, ProcessPoolExecutor(2, mp_context=context) as pool:
        some = [[f"{n}" for n in range(part, part + 40)] for part in range(0, 60, 20)]
        told = list(pool.map(insert, [news] * 3, some, timeout=100))
        told += list(pool.map(insert_awaited, [awaited] * 3, some, timeout=100))
        assert sum(ages.count(0) for ages in told) == 80
        with pytest.raises(BadItem) as caught:
            pool.submit(insert, news, ["a", float("nan")]).result(60)
        assert caught.value.indices == [1]


def test_multiprocessing_pool(any_server):
    """So do those of multiprocessing, which hang on what cannot be unpickled."""
    spawning, news = multiprocessing.get_context("spawn"), UriFilter.create("news", redis=any_server.url, **SETTINGS)
    with news, spawning.Pool(1) as pool:
        assert pool.apply_async(insert, (news, ["a", "b"])).get(60) == [0, 0]


def test_with_its_archive(any_server, folder):
    """It knows its archive, from which it is brought back; one that the environment named later is not asked."""
    news = UriFilter.create("news", redis=any_server.url, archive=folder, **SETTINGS)
    news.insert("a")
    news.checkpoint()
    packed = pickle.dumps(news)
    any_server.ask("flushall")
    with pickle.loads(packed) as again:
        assert again.insert_ages(["a", "b"]) == [1, 0]
        assert again.restored.checkpoint == 1
        assert again.checkpoint().number == 2


def test_no_password_travels(make_server, monkeypatch):
    """The environment gives it, in an address of the same place; without one the error names the variable."""
    server = make_server(requirepass="sesame")
    news = UriFilter.create("news", redis=server.url, **SETTINGS)
    packed = pickle.dumps(news)
    assert b"sesame" not in packed
    again = pickle.loads(packed)
    assert b"sesame" not in pickle.dumps(copy.copy(news))
    with pytest.raises(ServerUnavailable, match=r"set URIFILTER_REDIS_URL to .* with both \(it is not set\)"):
        again.insert("a")
    monkeypatch.setenv("URIFILTER_REDIS_URL", "redis://:sesame@localhost:1/0")
    with pytest.raises(ServerUnavailable, match=r"it names another place") as caught:
        again.insert("a")
    assert "sesame" not in str(caught.value)
    monkeypatch.setenv("URIFILTER_REDIS_URL", server.url)
    assert again.insert("a") is True
    assert pickle.loads(pickle.dumps(again)).insert("a") is False
    monkeypatch.delenv("URIFILTER_REDIS_URL")
    assert copy.deepcopy(news).insert("a") is False  # a copy stays here, and needs no environment


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_filter_of_a_client_object(way, clients, any_server):
    """It is refused, and the error says what to do."""
    UriFilter.create("news", redis=any_server.url, **SETTINGS).close()
    of_clients = redis.asyncio.Redis if clients.awaited else redis.Redis
    client = of_clients.from_url(any_server.url)
    with pytest.raises(TypeError, match="open it with the server's address"):
        way(clients.open(redis=client))
    clients.wait(client.aclose() if clients.awaited else client.close())


@pytest.mark.parametrize("kind", [FilterAPIClient, AsyncFilterAPIClient])
def test_sdk(way, kind, service, make_filter):
    """Its clients have the same address, path and timeouts."""
    make_filter(**SETTINGS)
    with Clients("asyncio" if kind is AsyncFilterAPIClient else "blocking") as clients:
        api = kind(service.url, timeouts=Timeouts(total=9))
        assert clients.take(api).insert_ages("news", ["a"]) == [0]
        again = way(api)
        assert clients.take(again).insert_ages("news", ["a", "b"]) == [1, 0]
        assert again._api.session.timeouts == Timeouts(total=9)


def test_no_token_travels(service, make_filter, monkeypatch):
    """The environment gives it; without one the first call says so, and nothing is sent. A copy has it."""
    make_filter(**SETTINGS)
    with FilterAPIClient(service.url, "sesame") as client:
        packed = pickle.dumps(client)
        assert b"sesame" not in packed
        assert copy.copy(client)._api.token == "sesame"
        again = pickle.loads(packed)
        for each in (again, copy.copy(again), pickle.loads(pickle.dumps(again))):
            with pytest.raises(FilterAPIError, match="set URIFILTER_API_TOKEN") as caught:
                each.insert_many("news", ["a"])
            assert caught.value.error_code == "unauthorized"
        monkeypatch.setenv("URIFILTER_API_TOKEN", "sesame")
        with pickle.loads(packed) as again:
            assert again.insert_ages("news", ["a"]) == [0]


def test_sdk_settings(service):
    """The certificates and the proxy go through pickle; a context, or a proxy's password, is refused in words."""
    proxied = FilterAPIClient(service.url, proxy="http://127.0.0.1:1", verify="/etc/ssl/certs")
    assert pickle.loads(pickle.dumps(proxied))._more == proxied._more
    with pytest.raises(TypeError, match="give verify= a file or folder"):
        pickle.dumps(FilterAPIClient(service.url, verify=ssl.create_default_context()))
    with pytest.raises(TypeError, match="proxy has a password"):
        pickle.dumps(FilterAPIClient(service.url, proxy="http://user:secret@127.0.0.1:1"))
