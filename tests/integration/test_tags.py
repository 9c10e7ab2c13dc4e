"""The tags of shards: they spread over a cluster."""

from __future__ import annotations

import functools
import itertools

import pytest
from support.archives import sound
from support.pipelines import pipelines
from support.servers import Saved
from support.tags import slot_of

from urifilter_redis import FilterNotFound, SliceLost, UriFilter, base_blocking, drop_filter
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.flows import dropping, lifecycle
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.keys import FilterKeys

SHARDS = 5
SETTINGS = {"capacity": 10_000, "error_rate": 1e-8, "shards": SHARDS}
RING = SETTINGS | {"retention": "ring", "slices": 3, "period": "1d"}
SPREAD = {"news:0", "news:1", "news:2", "news:3-2", "news:4-2"}


def tags(server) -> set[str]:
    """The tags of all keys; each shard has its own, and it is the same in all keys of the shard."""
    with server.client() as admin:
        return {key.decode().split("{")[1].split("}")[0] for key in admin.scan_iter("*{*")}


def meta_fields(server, tag) -> set[bytes]:
    return set(server.ask("hkeys", f"urifilter:{{{tag}}}:meta"))


def test_new_filters_are_spread(make_server):
    """The slots of their shards, as a server in cluster mode has them, lie in all groups."""
    server = make_server("redis70", **{"cluster-enabled": "yes"})
    keys = FilterKeys("urifilter", "news", 64)
    with server.client() as admin:
        slots = [admin.execute_command("CLUSTER", "KEYSLOT", keys.shard(n).slice("today")) for n in range(64)]
    assert slots == [slot_of(keys.shard(n).base.split("{")[1].split("}")[0]) for n in range(64)]
    first = slots[0] // 256
    assert [slot // 256 for slot in slots] == [(first + shard) % 64 for shard in range(64)]


@pytest.mark.sampled
def test_a_life(server, archive):
    """Made, opened, turned, checkpointed, restored into an empty Redis and dropped, all under the same tags."""
    where = {"redis": server.url, "archive": archive}
    with UriFilter.create("news", **where, **RING) as news:
        assert news.insert_ages(range(100)).count(0) == 100
        news.checkpoint()
    assert tags(server) == SPREAD
    fields = meta_fields(server, "news:0")
    with UriFilter.create("news", **where, **RING) as news:
        assert news.ages(range(100)).count(0) == 0
        news.rotate()
        assert news.insert_ages(range(50, 200)).count(0) == 100
        news.checkpoint()
    server.ask("flushall")
    with UriFilter.open("news", **where) as news:
        assert news.restored.shards == SHARDS
        assert news.ages(range(200)).count(0) == 0
    assert tags(server) == SPREAD
    assert meta_fields(server, "news:0") - {b"timeline"} >= fields - {b"timeline"}
    sound(archive)
    assert drop_filter("news", **where) is True
    assert server.ask("keys") == []


def die_after(steps, flow_of, server):
    """Run so many pipelines of a flow and no more, as a process does that is killed; say whether there were more."""
    connector, session = base_blocking.connect(ClientOptions("news", redis=server.url))
    running = pipelines(flow_of(session), connector)
    done = len(list(itertools.islice(running, steps)))
    running.close()
    connector.close()
    return done == steps


@pytest.mark.sampled
@pytest.mark.parametrize("then", ["create", "open", "drop"])
def test_half_made(any_server, then):
    """Whoever completes a filter, or drops it, finds all of its shards."""
    create = functools.partial(lifecycle.create, settings=Settings(**SETTINGS))
    begun = 0
    UriFilter.create("news", redis=any_server.url, **SETTINGS).close()  # so that the server has the scripts
    drop_filter("news", redis=any_server.url)
    for steps in range(1, 20):
        if not die_after(steps, create, any_server):
            break
        if b"phase" in meta_fields(any_server, "news:0"):
            begun += 1
            if then != "drop":
                finish, settings = (UriFilter.open, {}) if then == "open" else (UriFilter.create, SETTINGS)
                with finish("news", redis=any_server.url, **settings) as again:
                    assert again.insert_ages(range(100)).count(0) == 100
                assert tags(any_server) == SPREAD
        drop_filter("news", redis=any_server.url)
        assert tags(any_server) == set()
    assert begun >= 2


@pytest.mark.sampled
def test_half_dropped(any_server):
    """Whoever finishes a drop finds all shards, and the filter that is made then is whole."""
    for steps in range(1, 20):
        UriFilter.create("news", redis=any_server.url, **SETTINGS).close()
        more = die_after(steps, dropping.drop, any_server)
        UriFilter.create("news", redis=any_server.url, **SETTINGS).close()
        assert tags(any_server) == SPREAD
        drop_filter("news", redis=any_server.url)
        assert tags(any_server) == set()
        if not more:
            break


def test_shards_that_lost_shard_0(any_server):
    """Create does not make a new filter over the shards that are left, and drop removes these."""
    UriFilter.create("news-1", redis=any_server.url, **SETTINGS).close()
    others = tags(any_server)
    UriFilter.create("news", redis=any_server.url, **SETTINGS).insert_many(range(100))
    whole = Saved(any_server)
    for gone in ("*{news:0}:*", "*{news:?}:meta", "*{news:[0-3]}:*"):
        whole.bring_back()
        any_server.ask("delete", "urifilter:{news:0}:today", *any_server.ask("keys", gone), "urifilter:{news:0}:meta")
        with pytest.raises(FilterNotFound):
            UriFilter.open("news", redis=any_server.url)
        with pytest.raises(SliceLost, match="drop"):
            UriFilter.create("news", redis=any_server.url, **SETTINGS)
        assert drop_filter("news", redis=any_server.url) is True
        assert tags(any_server) == others
        with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news:
            assert news.insert_ages(range(100)).count(0) == 100


def test_leftovers_of_filters_with_other_tags(any_server):
    """Without shard 0's meta, drop removes the shards of filters of any number of shards."""
    with any_server.client() as admin:
        left = {}
        for shards in (5, 18):
            UriFilter.create("news", redis=any_server.url, **SETTINGS | {"shards": shards}).close()
            left |= {key: admin.dump(key) for key in admin.keys("*{news:*") if b"{news:0}" not in key}
            admin.flushall()
        for key, value in left.items():
            admin.restore(key, 0, value)
    assert {"news:3-2", "news:1-53"} < tags(any_server)
    assert drop_filter("news", redis=any_server.url) is True
    assert tags(any_server) == set()
