"""The tags of shards: filters of older releases keep theirs for ever, and new ones spread over a cluster."""

from __future__ import annotations

import copy
import functools
import itertools
import shlex

import pytest
from support import cli
from support.archives import sound
from support.pipelines import pipelines
from support.servers import Saved
from support.tags import slot_of

from urifilter_redis import FilterNotFound, SliceLost, UriFilter, client, drop_filter, list_filters
from urifilter_redis.flows import dropping, lifecycle
from urifilter_redis.protocol import config as configs
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.sdk import FilterAPIClient

SHARDS = 5
SETTINGS = {"capacity": 10_000, "error_rate": 1e-8, "shards": SHARDS}
RING = SETTINGS | {"retention": "ring", "slices": 3, "period": "1d"}
SPREAD = {"news:0", "news:1", "news:2", "news:3-2", "news:4-2"}


@pytest.fixture
def older(monkeypatch):
    """Make filters as releases did that knew no other tags than plain ones: without ``tags`` in ``meta``."""

    def make(name, **settings):
        with monkeypatch.context() as patch:
            patch.setattr(configs, "SPREAD", "plain")
            return UriFilter.create(name, **settings)

    return make


def tags(server) -> set[str]:
    """The tags of all keys; each shard has its own, and it is the same in all keys of the shard."""
    with server.client() as admin:
        return {key.decode().split("{")[1].split("}")[0] for key in admin.scan_iter("*{*")}


def plain(name="news", shards=SHARDS) -> set[str]:
    return {f"{name}:{shard}" for shard in range(shards)}


def spread(name="news", shards=SHARDS) -> set[str]:
    keys = FilterKeys("urifilter", name, shards, "spread")
    return {keys.shard(shard).base.split("{")[1].split("}")[0] for shard in range(shards)}


def meta_fields(server, tag) -> set[bytes]:
    with server.client() as admin:
        return set(admin.hkeys(f"urifilter:{{{tag}}}:meta"))


def test_new_filters_are_spread(make_server):
    """The slots of their shards, as a server in cluster mode has them, lie in all groups."""
    server = make_server("redis70", **{"cluster-enabled": "yes"})
    keys = FilterKeys("urifilter", "news", 64, "spread")
    with server.client() as admin:
        slots = [admin.execute_command("CLUSTER", "KEYSLOT", keys.shard(n).slice("today")) for n in range(64)]
    assert slots == [slot_of(keys.shard(n).base.split("{")[1].split("}")[0]) for n in range(64)]
    first = slots[0] // 256
    assert [slot // 256 for slot in slots] == [(first + shard) % 64 for shard in range(64)]


@pytest.mark.parametrize("make", ["older", "create"])
def test_a_life(server, archive, request, make):
    """Made, opened, turned, checkpointed, restored into an empty Redis and dropped, all under the same tags."""
    made, wanted = (request.getfixturevalue("older"), plain()) if make == "older" else (UriFilter.create, SPREAD)
    where = {"redis": server.url, "archive": archive}
    with made("news", **where, **RING) as news:
        assert news.insert_ages(range(100)).count(0) == 100
        news.checkpoint()
    assert tags(server) == wanted
    fields = meta_fields(server, "news:0")
    assert (b"tags" in fields) is (make == "create")
    with UriFilter.create("news", **where, **RING) as news:
        assert (news.config.tags, news.info().tags) == (("plain",) * 2 if make == "older" else ("spread",) * 2)
        assert news.ages(range(100)).count(0) == 0
        news.rotate()
        assert news.insert_ages(range(50, 200)).count(0) == 100
        news.checkpoint()
    with server.client() as admin:
        admin.flushall()
    with UriFilter.open("news", **where) as news:
        assert news.restored.shards == SHARDS
        assert news.ages(range(200)).count(0) == 0
    assert tags(server) == wanted
    assert meta_fields(server, "news:0") - {b"timeline"} >= fields - {b"timeline"}
    assert (b"tags" in meta_fields(server, "news:0")) is (make == "create")
    sound(archive)
    assert drop_filter("news", **where) is True
    with server.client() as admin:
        assert admin.keys() == []


def test_an_archive_says_the_tags(redis70, older, folder, tmp_path):
    """Of a filter that Redis has lost: create, the command line, and an import into another archive keep its tags."""
    where = {"redis": redis70.url, "archive": folder}
    with older("news", **where, **SETTINGS) as news:
        news.insert_many(range(100))
        news.checkpoint()
    options = ("--redis", redis70.url, "--archive")
    other, file = f"file://{tmp_path / 'other'}", tmp_path / "news.urifilter"
    cli.run("archive", "export", "news", file, *options[2:], folder)
    cli.run("archive", "import", file, *options[2:], other)
    for restore in (
        lambda: UriFilter.create("news", **where, **SETTINGS).close(),
        lambda: cli.run("restore", "news", *options, folder),
        lambda: cli.run("restore", "news", *options, other),
    ):
        with redis70.client() as admin:
            admin.flushall()
        restore()
        assert tags(redis70) == plain()
        with UriFilter.open("news", redis=redis70.url) as news:
            assert news.ages(range(100)).count(0) == 0


def test_everybody_finds_an_older_filter(redis70, older, service):
    """The command line, the service, redis-cli by hand, copies of an object, and union into a filter of either kind."""
    where = ("--redis", redis70.url)
    with older("news", redis=redis70.url, **SETTINGS) as news:
        news.insert_many([f"u{n}" for n in range(100)])
        assert copy.copy(news).ages([f"u{n}" for n in range(100)]).count(0) == 0
    for name in ("news", "newer"):
        if name == "newer":
            UriFilter.create(name, redis=redis70.url, **SETTINGS | {"seed": news.settings["seed"]}).close()
            assert cli.run("union", name, "news", *where)[1] == ""
        for n in (1, 2, 3, 101, 102, 103):
            line = shlex.split(cli.run("lua", "show", "insert", name, f"u{n}", *where)[0].decode())
            with redis70.client() as admin:
                assert admin.execute_command(*line[line.index("EVALSHA") :]) == [int(n < 100 or name == "newer")]
        with FilterAPIClient(service.url) as api:
            assert api.ages(name, [f"u{n}" for n in range(104)]) == [n != 100 for n in range(104)]
        out, _ = cli.run("doctor", *where, code=1)
        assert f"filter {name}".encode() in out
    assert list_filters(redis=redis70.url) == ["newer", "news"]
    assert tags(redis70) == plain() | spread("newer")
    with UriFilter.open("news", redis=redis70.url) as news:
        assert news.union("newer") == 0
    cli.run("drop", "newer", "--yes", *where)
    assert tags(redis70) == plain()


def die_after(steps, flow_of, server):
    """Run so many pipelines of a flow and no more, as a process does that is killed; say whether there were more."""
    connector, session = client.connect("news", server.url, "urifilter", None)
    running = pipelines(flow_of(session), connector)
    done = len(list(itertools.islice(running, steps)))
    running.close()
    connector.close()
    return done == steps


@pytest.mark.parametrize("first", ["plain", "spread"])
@pytest.mark.parametrize("then", ["create", "open", "drop"])
def test_half_made(redis70, monkeypatch, first, then):
    """Whoever completes a filter of either kind, or drops it, goes by the tags that its first creator chose."""
    create = functools.partial(lifecycle.create, settings=Settings(**SETTINGS))
    wanted, begun = plain() if first == "plain" else SPREAD, 0
    UriFilter.create("news", redis=redis70.url, **SETTINGS).close()  # so that the server has the scripts
    drop_filter("news", redis=redis70.url)
    for steps in range(1, 20):
        with monkeypatch.context() as patch:
            patch.setattr(configs, "SPREAD", first)
            if not die_after(steps, create, redis70):
                break
        if b"phase" in meta_fields(redis70, "news:0"):
            begun += 1
            if then != "drop":
                again = UriFilter.open("news", redis=redis70.url) if then == "open" else None
                again = again or UriFilter.create("news", redis=redis70.url, **SETTINGS)
                assert again.insert_ages(range(100)).count(0) == 100
                again.close()
                assert tags(redis70) == wanted
        drop_filter("news", redis=redis70.url)
        assert tags(redis70) == set()
    assert begun >= 2


@pytest.mark.parametrize("first", ["plain", "spread"])
def test_half_dropped(redis70, older, first):
    """Whoever finishes a drop goes by the tags in shard 0, and the filter that is made then has spread ones."""
    for steps in range(1, 20):
        made = older if first == "plain" else UriFilter.create
        made("news", redis=redis70.url, **SETTINGS).close()
        more = die_after(steps, dropping.drop, redis70)
        UriFilter.create("news", redis=redis70.url, **SETTINGS).close()
        assert tags(redis70) in (plain(), SPREAD)
        drop_filter("news", redis=redis70.url)
        assert tags(redis70) == set()
        if not more:
            break


def test_shards_that_lost_shard_0(redis70, older):
    """A filter of an older release without shard 0: create does not make a new one beside it, and drop removes it."""
    older("news", redis=redis70.url, **SETTINGS).insert_many(range(100))
    UriFilter.create("news-1", redis=redis70.url, **SETTINGS).close()
    whole = Saved(redis70)
    for gone in ("*{news:0}:*", "*{news:?}:meta", "*{news:[0-3]}:*"):
        whole.bring_back()
        with redis70.client() as admin:
            admin.delete("urifilter:{news:0}:today", *admin.keys(gone), "urifilter:{news:0}:meta")
        with pytest.raises(FilterNotFound):
            UriFilter.open("news", redis=redis70.url)
        with pytest.raises(SliceLost, match="drop"):
            UriFilter.create("news", redis=redis70.url, **SETTINGS)
        assert not meta_fields(redis70, "news:0")
        assert drop_filter("news", redis=redis70.url) is True
        assert tags(redis70) == spread("news-1")
        with UriFilter.create("news", redis=redis70.url, **SETTINGS) as news:
            assert news.insert_ages(range(100)).count(0) == 100


def test_leftovers_of_filters_with_other_tags(redis70, older):
    """Without shard 0's meta, drop removes the shards of filters of any number of shards and any tags."""
    with redis70.client() as admin:
        left = {}
        for made, shards in ((older, 3), (UriFilter.create, 5), (UriFilter.create, 18)):
            made("news", redis=redis70.url, **SETTINGS | {"shards": shards}).close()
            left |= {key: admin.dump(key) for key in admin.keys("*{news:*") if b"{news:0}" not in key}
            admin.flushall()
        for key, value in left.items():
            admin.restore(key, 0, value)
    assert tags(redis70) == (plain(shards=3) | spread() | spread(shards=18)) - {"news:0"}
    assert drop_filter("news", redis=redis70.url) is True
    assert tags(redis70) == set()


def test_meta_with_tags_of_no_kind(redis70):
    """It is damaged for all, and drop removes it nevertheless, with all its shards."""
    UriFilter.create("news", redis=redis70.url, **SETTINGS).close()
    with redis70.client() as admin:
        admin.hset("urifilter:{news:0}:meta", "tags", "odd")
    for use in (UriFilter.open, functools.partial(UriFilter.create, **SETTINGS)):
        with pytest.raises(SliceLost, match="meta is damaged"):
            use("news", redis=redis70.url)
    assert drop_filter("news", redis=redis70.url) is True
    assert tags(redis70) == set()
