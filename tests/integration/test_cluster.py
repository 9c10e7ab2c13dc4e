"""A filter on three masters of a Redis Cluster: everything answers as on one server, whatever address was given."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pickle
import shlex
import shutil
import subprocess
from collections import Counter
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from support import cli
from support.forked import in_child
from support.scrapy_crawl import ADDON, Crawl
from support.service import Service
from support.shard_keys import shard_key
from support.site import Served
from support.tags import slot_of
from support.together import together

from urifilter_redis import (
    AsyncUriFilter,
    Claim,
    ServerUnavailable,
    SliceLost,
    Timeouts,
    UriFilter,
    drop_filter,
    list_filters,
)
from urifilter_redis.engine.steps import Pause
from urifilter_redis.sdk import FilterAPIClient
from urifilter_redis.service.filters import connect
from urifilter_redis.service.settings import ServiceSettings

pytestmark = pytest.mark.xdist_group("cluster")

SHARDS = 6
PRECISE = {"capacity": 20_000, "error_rate": 1e-8, "shards": SHARDS}
RING = PRECISE | {"retention": "ring", "slices": 3, "period": "1d"}
ITEMS = [f"https://example.com/{number}" for number in range(300)]

GIVEN = ("node", "nodes", "cluster client 2", "cluster client 3", "client 2", "client 3")


@pytest.fixture
def give(cluster, clients):
    """Return what is given as ``redis=``: addresses, or clients of redis-py with a version of its protocol."""
    library, made = redis.asyncio if clients.awaited else redis, []

    def give(kind: str):
        if kind in {"node", "nodes"}:
            return cluster.nodes[1].url if kind == "node" else cluster.cluster_url
        factory = library.RedisCluster if kind.startswith("cluster") else library.Redis
        made.append(factory(host="127.0.0.1", port=cluster.nodes[2].port, protocol=int(kind[-1])))
        return made[-1]

    yield give
    for each in made:
        clients.wait(each.aclose() if clients.awaited else each.close())


@pytest.fixture
def news(cluster, clients):
    return clients.create("news", redis=cluster.url, **PRECISE)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", GIVEN)
def test_each_address_and_client(clients, cluster, give, kind):
    """One node, several, or a client object of redis-py: the answers are exact, and the shards lie evenly."""
    news = clients.create("news", redis=give(kind), **PRECISE)
    assert news.insert_many(ITEMS) == [True] * 300
    assert news.insert_many([*ITEMS[:100], "x", "x"]) == [False] * 100 + [True, False]
    assert [news.insert("y"), news.insert("y"), news.contains("y"), news.contains("z")] == [True, False, True, False]
    assert news.forget(["y", "z"]) == [True, False]
    assert news.insert("y") is True
    other = clients.open("news", redis=give(kind))
    assert other.contains_many([*ITEMS, "z"]) == [True] * 300 + [False]
    info = other.info()
    assert (info.inserted, info.shards, info.over_capacity) == (303, SHARDS, False)  # y twice
    metas = [sum(key.endswith(b":meta") for key in node.ask("KEYS", "urifilter:{*")) for node in cluster.nodes]
    assert metas == [2, 2, 2]
    other.drop()
    assert cluster.sizes() == [0, 0, 0]


@pytest.mark.usefixtures("usual_timeouts")
def test_the_time_for_a_failover(clients, cluster, give):
    """A call is repeated for as long as another master may need, whatever address was given."""
    for kind in ("node", "nodes"):
        with clients.create("news", redis=give(kind), **PRECISE) as news:
            assert news._session.total == 30
    with clients.open("news", redis=give("node"), timeouts=Timeouts(total=7)) as news:
        assert news._session.total == 7


@pytest.mark.usefixtures("usual_timeouts")
def test_the_time_of_the_service(cluster):
    """It answers before a proxy gives up."""

    def total(session):
        yield Pause(0)
        return session.total

    async def total_of(**settings):
        filters = await connect(ServiceSettings(redis_url=cluster.url, **settings))
        try:
            return await filters.run("news", total)
        finally:
            await filters.close()

    UriFilter.create("news", redis=cluster.url, **PRECISE).close()
    assert (asyncio.run(total_of()), asyncio.run(total_of(timeout=7))) == (20, 7)


@pytest.mark.slow
def test_single_calls_at_once(cluster):
    """Many tasks' single calls, coalesced over all masters: each item is new once."""

    async def ask():
        async with await AsyncUriFilter.create("news", redis=cluster.url, **PRECISE) as news:
            told = await asyncio.gather(*(news.insert(each) for each in ITEMS * 2))
            return sum(told), (await news.info()).inserted

    assert asyncio.run(ask()) == (300, 300)


def test_threads(cluster):
    """Threads share a filter object: each item is new once."""
    with UriFilter.create("news", redis=cluster.url, **PRECISE) as news:
        told = []
        together(lambda: told.extend(news.unique(ITEMS)) for _ in range(4))
        assert sorted(told) == sorted(ITEMS)


@pytest.mark.sampled
def test_fork_and_pickle(news, clients):
    """A forked child has connections of its own to each node; a copy opens at its first call."""
    assert news.insert_many(ITEMS[:50]) == [True] * 50
    copy = pickle.loads(pickle.dumps(news))
    if clients.awaited:
        clients.wait(copy.insert_many([]))
        assert clients.wait(copy.insert_many(ITEMS[:60])) == [False] * 50 + [True] * 10
        clients.wait(copy.close())
        return
    assert in_child(lambda: news.insert_many(ITEMS[:60])) == [False] * 50 + [True] * 10
    with copy:
        assert copy.insert_many(ITEMS[:70]) == [False] * 60 + [True] * 10
    assert news.insert_many(ITEMS[:80]) == [False] * 70 + [True] * 10


def test_streams_and_a_near_cache(cluster):
    """``iter_unique`` and the near cache."""
    with UriFilter.create("news", redis=cluster.url, near_cache=1000, **PRECISE) as news:
        assert list(news.iter_unique(ITEMS * 2)) == ITEMS
        assert news.contains_many(ITEMS) == [True] * 300
        assert news.insert_many(ITEMS) == [False] * 300
        assert news.info().near_cache.hits > 0


def test_claims(news, clients, cluster):
    """Claimed once, committed once; what is released goes to others, from shards on all masters."""
    other = clients.open("news", redis=cluster.cluster_url)
    some = ITEMS[:40]
    with news.claims(lease=60) as mine, other.claims(lease=60) as theirs:
        assert mine.claim_many(some) == [True] * 40
        assert theirs.claim_many([*some, "x"]) == [False] * 40 + [True]
        assert mine.commit(some[:10]) == [True] * 10
        assert theirs.commit(some[:10]) == [False] * 10
        assert mine.release(some[10:20], failed=True) == [True] * 10
        got = []
        while found := theirs.reclaim(100):
            got += found
        assert sorted(got, key=str) == sorted((Claim(each, each, 1, 0) for each in some[10:20]), key=str)
        assert other.insert_many(some) == [False] * 40
        assert theirs.commit(some[10:20]) == [True] * 10
        assert len(mine.held) == 20
    found = news.info().claims
    assert (found.in_flight, found.holders) == (0, 0)  # given back
    assert news.insert_many(some) == [False] * 20 + [True] * 20


@pytest.mark.sampled
def test_rotation_by_hand(clients, cluster):
    """A ring and rolling turn on all masters; what expires is new again."""
    for name, more in (("ring", {}), ("rolling", {"retention": "rolling"})):
        news = clients.create(name, redis=cluster.url, **RING | more)
        assert news.insert_many(ITEMS[:30]) == [True] * 30
        for epoch in (1, 2):
            assert (news.rotate().epoch, news.contains("x"), news.contains(ITEMS[0])) == (epoch, False, True)
        assert news.insert_many(ITEMS[20:40]) == [False] * 10 + [True] * 10
        while news.contains(ITEMS[0]):
            assert news.rotate().epoch <= 4
        assert news.insert_many(ITEMS[:40]) == [True] * 30 + [False] * 10


@pytest.mark.slow
def test_time_passes_by_itself(clients, cluster):
    """Inserts turn the filter on all masters when its period is over."""
    news = clients.create("news", redis=cluster.url, **RING | {"period": 1})
    news.insert("a")
    clients.wait_until(lambda: news.insert("b") or news.info().epoch >= 1, "nobody turns it")
    clients.wait_until(lambda: news.insert("b") or not news.contains("a"), "nothing expires")


@pytest.mark.sampled
@pytest.mark.parametrize("settings", [PRECISE, RING | {"retention": "rolling"}], ids=["forever", "rolling"])
def test_checkpoint_and_restore(clients, cluster, folder, settings):
    """All masters lose their data: the filter comes back from its archive."""
    news = clients.create("news", redis=cluster.url, archive=folder, **settings)
    assert news.insert_many(ITEMS) == [True] * 300
    with news.claims() as mine:
        assert mine.claim("in flight") is True
        news.checkpoint()
        for node in cluster.nodes:
            node.ask("FLUSHALL")
            node.ask("SCRIPT", "FLUSH")
        again = clients.open("news", redis=cluster.cluster_url, archive=folder)
        assert again.restored.shards == SHARDS
        assert again.insert_many([*ITEMS, "in flight", "x"]) == [False] * 301 + [True]
        assert again.info().inserted == 301


def test_one_master_loses_its_data(clients, cluster, folder):
    """The shards of one master only are restored."""
    news = clients.create("news", redis=cluster.url, archive=folder, **PRECISE)
    news.insert_many(ITEMS)
    news.checkpoint()
    cluster.nodes[1].ask("FLUSHALL")
    again = clients.open("news", redis=cluster.url, archive=folder)
    assert again.restored.shards == 2
    assert again.contains_many(ITEMS) == [True] * 300


def test_union(clients, cluster):
    """A filter is merged into another, whose shards lie on other masters."""
    news, source = (clients.create(name, redis=cluster.url, seed=7, **PRECISE) for name in ("news", "source"))
    source.insert_many(ITEMS[:200])
    news.insert_many(ITEMS[100:250])
    news.union("source")
    assert news.insert_many(ITEMS) == [False] * 250 + [True] * 50


def test_segments(clients, cluster):
    """A shard of several bitmaps stays on its master, and each call names keys of one slot."""
    news = clients.create("news", redis=cluster.url, capacity=40_000_000, shards=3)
    assert news.config.segments == 12
    assert news.insert_many(ITEMS) == [True] * 300
    assert news.insert_many(ITEMS) == [False] * 300
    assert news.info().inserted == 300


def test_drop_with_leftovers(cluster):
    """Shards whose first shard is gone are found on all masters, and removed."""
    with UriFilter.create("news", redis=cluster.url, **PRECISE) as news:
        news.insert_many(ITEMS)
    key = shard_key("news", 0, SHARDS, "meta")
    cluster.owner(slot_of(key[len("urifilter:{") : key.index("}")])).ask("DEL", key)
    assert cluster.sizes() > [0, 0, 0]
    with pytest.raises(SliceLost):
        UriFilter.create("news", redis=cluster.url, **PRECISE)
    assert drop_filter("news", redis=cluster.nodes[2].url) is True
    assert cluster.sizes() == [0, 0, 0]
    assert list_filters(redis=cluster.url) == []


def test_counting(clients, cluster):
    """Items are removed."""
    news = clients.create("news", redis=cluster.url, **PRECISE | {"layout": "counting", "error_rate": 1e-3})
    assert news.insert_many(ITEMS[:20]) == [True] * 20
    assert news.remove(ITEMS[:10]) == [True] * 10
    assert news.insert_many(ITEMS[:20]) == [True] * 10 + [False] * 10


def test_another_database(cluster, clients):
    """A cluster has one database; another is refused at once."""
    with pytest.raises(ServerUnavailable, match="cluster mode"):
        clients.create("news", redis=cluster.url.replace("/0", "/1"), **PRECISE)
    with pytest.raises(ValueError, match="database 0"):
        clients.create("news", redis=cluster.cluster_url + "/1", **PRECISE)


def test_commands(cluster, tmp_path):
    """The command line does its work on all masters."""
    where = ("--redis", cluster.nodes[1].url)
    lines = [f"{each}\n".encode() for each in ITEMS[:60]]
    created = ("news", "--capacity", 20_000, "--error-rate", 1e-8, "--shards", SHARDS)
    cli.run("create", *created, "--retention", "ring", "--slices", 2, "--period", "1d", *where)
    dedupe = ("dedupe", "--filter", "news", *where)
    assert cli.run(*dedupe, given=b"".join(lines[:20] * 2))[0] == b"".join(lines[:20])
    assert cli.run(*dedupe, given=b"".join(lines))[0] == b"".join(lines[20:])
    cli.run("rotate", "news", *where)
    cli.run("worker", "--once", *where)
    assert b"news" in cli.run("list", *where)[0]
    assert b'"inserted": 60' in cli.run("info", "news", "--json", *where)[0]
    for node in cluster.nodes:
        node.ask("SCRIPT", "FLUSH")
    loaded = [line.split()[1] for line in cli.run("lua", "load", *where)[0].splitlines()]
    assert [node.ask("SCRIPT", "EXISTS", *loaded) for node in cluster.nodes] == [[1] * len(loaded)] * 3
    cli.run("drop", "news", "--yes", *where)
    assert cluster.sizes() == [0, 0, 0]


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is missing: apt-get install redis-tools")
def test_lines_for_redis_cli(cluster):
    """The line that ``lua show`` prints finds the master of the shard by itself."""
    with UriFilter.create("news", redis=cluster.url, **PRECISE) as news:
        for item in ITEMS[:6]:
            shown, _ = cli.run("lua", "show", "insert", "news", item, "--redis", cluster.nodes[1].url)
            assert subprocess.check_output(shlex.split(shown.decode())) == b"0\n"
        assert news.contains_many(ITEMS[:7]) == [True] * 6 + [False]


def test_import_of_a_set(cluster):
    """A set that lies on one master is imported into a filter whose shards lie on all."""
    where = ("--redis", cluster.nodes[1].url)
    for node in cluster.nodes:
        for key in ("seen", "other", "third"):
            if cluster.owner(slot_of(key)) is node:
                node.ask("SADD", key, *ITEMS[:100])
    with UriFilter.create("news", redis=cluster.url, **PRECISE) as news:
        for key in ("seen", "other", "third"):
            cli.run("import", "news", "--set", key, "--quiet", *where)
        assert news.insert_many(ITEMS[:101]) == [False] * 100 + [True]


@pytest.mark.slow
def test_service_and_sdk(cluster):
    """The HTTP service over any node."""
    with (
        UriFilter.create("news", redis=cluster.url, **PRECISE) as news,
        Service(cluster.nodes[2].url) as service,
        FilterAPIClient(service.url) as api,
    ):
        assert api.unique("news", ITEMS) == ITEMS
        assert api.unique("news", [*ITEMS, "x"]) == ["x"]
        assert news.info().inserted == 301


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("scrapy") is None, reason="Scrapy is missing: pip install '.[scrapy]'")
def test_crawls_by_scrapy(cluster):
    """Two crawls at once share the pages of a site: but for the start, each is fetched once."""
    with UriFilter.create("news", redis=cluster.url, **PRECISE), Served(count=40) as site:
        settings = {"ADDONS": ADDON, "URIFILTER_NAME": "news", "URIFILTER_REDIS_URL": cluster.cluster_url}
        for each in [Crawl(site.url, domains=["127.0.0.1"], **settings) for _ in range(2)]:
            each.stats()
        fetched = Counter(site.fetched())
        assert fetched.keys() == site.pages.keys()
        twice = {path for path, times in fetched.items() if times > 1 and not site.pages[path].has_failed}
        assert twice <= {urlsplit(site.url).path}


def test_doctor(cluster):
    """It looks at each master: facts that differ are told with the master's name."""
    with UriFilter.create("news", redis=cluster.url, **PRECISE):
        out, _ = cli.run("doctor", "--json", "--redis", cluster.nodes[2].url, code=1)  # none of them persists
        found = {each["subject"]: (each["level"], each["text"]) for each in json.loads(out)}
        assert found["cluster"] == ("ok", "a Redis Cluster of 3 masters")
        assert found["clocks"][0] == "ok"
        assert found["filter news"][0] == "ok"
        assert found["eviction"] == ("ok", "noeviction")
    cluster.nodes[1].ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        out, _ = cli.run("doctor", "--json", "--redis", cluster.url, code=1)
    finally:
        cluster.nodes[1].ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    levels = {
        each["text"].partition(" ")[0]: each["level"] for each in json.loads(out) if each["subject"] == "eviction"
    }
    assert levels == {f"{node.name}:": "danger" if node is cluster.nodes[1] else "ok" for node in cluster.nodes}
