"""Claims beside the rest of a filter's life: info, doctor, unions, drops, rotations."""

from __future__ import annotations

import json

import pytest
from support import cli
from support.in_flight import Holder, in_flight, let_lapse
from support.shard_keys import shard_key

from urifilter_redis import ClaimsInfo, SliceLost, UriFilter, drop_filter
from urifilter_redis.flows.doctor import examine_claims
from urifilter_redis.flows.probe import refused_scripts

pytestmark = pytest.mark.slow

SETTINGS = {"capacity": 2000, "error_rate": 1e-8, "shards": 3, "seed": 1}


@pytest.fixture
def news(make_filter):
    """A filter of three shards."""
    return make_filter(**SETTINGS)


def test_info(news, admin):
    """It counts what is in flight, lapsed and delayed, and the living holders; without claims there is nothing."""
    assert news.info().claims is None
    one, other, dead = Holder(news, 100), Holder(news, 100), Holder(news, 300)
    one.claim(range(50))
    other.claim(range(50, 80))
    dead.claim(range(80, 100))
    assert one.release(range(10), 600) == [1] * 10
    assert one.release(range(10, 14)) == [1] * 4
    one.commit(range(14, 16))
    let_lapse(news, admin, dead.name, 1000)
    found = news.info().claims
    assert found.oldest_lapse == pytest.approx(1000, abs=30)
    assert found == ClaimsInfo(
        in_flight=64, lapsed=24, delayed=10, holders=2, oldest_lapse=found.oldest_lapse, lease=300.0
    )
    assert json.loads(json.dumps(news.info().to_dict()))["claims"]["in_flight"] == 64
    keys = [shard_key("news", shard, 3, name) for shard in range(3) for name in ("leases", "in_flight", "holders")]
    assert news.info().memory > sum(admin.memory_usage(key) for key in keys)
    assert one.commit(range(20)) == [0] * 14 + [1, 1] + [0] * 4
    assert one.commit(range(20, 100)) == [0] * 80
    found = news.info().claims
    assert (found.in_flight, found.lapsed, found.delayed, found.oldest_lapse) == (0, 0, 0, None)


def test_many_holders(news, admin):
    """More holders than one reply has: all are counted."""
    key = news._session.keys.shard(0)
    Holder(news).claim(range(50))
    with admin.pipeline() as pipe:
        for number in range(2500):
            holder = b"\2" + number.to_bytes(7, "big")
            pipe.zadd(key.holders, {holder: 1e13 if number % 2 else number + 1})
            pipe.zadd(key.in_flight, {holder + bytes(16): 0})
        pipe.execute()
    found = news.info().claims
    assert (found.in_flight, found.lapsed, found.holders) == (50 + 1250, 1250, 1 + 1250)


def test_the_command_line(news, admin, any_server):
    """Info prints the counts; doctor says that nobody reclaims, once items have lapsed for over three leases."""
    where = ("--redis", any_server.url)
    assert "lapsed" not in cli.run("info", "news", *where)[0].decode()
    assert "claims" not in cli.run("doctor", *where, code=1)[0].decode()
    one = Holder(news, 60)
    one.claim(range(1234))
    text = cli.run("info", "news", *where)[0].decode()
    assert "\nin flight               1,234\n" in text
    assert "\nholders                 1\n" in text
    assert "oldest lapse" not in text
    let_lapse(news, admin, one.name, 100)
    text = cli.run("info", "news", *where)[0].decode()
    assert "\nlapsed                  1,234\n" in text
    assert "oldest lapse" in text
    assert [each.level for each in examine_claims(news.info())] == ["ok"]
    let_lapse(news, admin, one.name, 200)
    (found,) = examine_claims(news.info())
    assert found.level == "note"
    assert "lapsed 1,234" in found.text
    assert "nobody reclaims" in found.text
    assert "urifilter reclaim news" in cli.run("doctor", *where, code=1)[0].decode()


def test_dead_letters(news, any_server):
    """Info counts it, in all and now; doctor says how much it is, and how it is listed."""
    where = ("--redis", any_server.url)
    with news.claims() as mine:
        mine.claim_many(map(str, range(7)))
        assert "dead letters" not in cli.run("doctor", *where, code=1)[0].decode()
        mine.reject(map(str, range(5)), "404")
        assert news.retry_dead_letters(["0", "1"]) == 2
        found = news.info().claims
        assert (found.rejected, found.dead_letters) == (5, 3)
        text = cli.run("info", "news", *where)[0].decode()
        assert "\nrejected                5\n" in text
        assert "\ndead letters            3\n" in text
        text = cli.run("doctor", *where, code=1)[0].decode()
        assert "dead letters 3 (urifilter dead-letters news lists them, and --retry offers them once more)" in text
        assert news.retry_dead_letters() == 3
        assert "dead letters" not in cli.run("doctor", *where, code=1)[0].decode()


def test_a_union_leaves_them_behind(news, admin, any_server):
    """What is in flight in the source is new in the target, even if the target has forgotten it; and the other way."""
    with UriFilter.create("monday", redis=any_server.url, **news.settings) as source:
        mine, theirs = Holder(news), Holder(source)
        news.insert_many(range(5))
        news.forget(range(5))
        source.insert_many(range(5, 50))
        assert theirs.claim(range(5)) == [0] * 5
        assert theirs.claim(range(100, 200)) == [0] * 100
        assert theirs.commit(range(150, 200)) == [0] * 50
        assert mine.claim(range(40, 60)) == [0] * 20
        assert news.union("monday") == pytest.approx(95, abs=3)
        assert set(in_flight(news, admin)) == {str(item) for item in range(40, 60)}
        assert news.contains_many(range(5)) == [False] * 5
        assert news.contains_many(range(100, 200)) == [False] * 50 + [True] * 50
        assert news.insert_ages(range(40, 60)) == [-1] * 20
        assert mine.commit(range(40, 60)) == [0] * 20
        assert len(in_flight(source, admin)) == 55


def test_a_drop(news, admin, any_server):
    """Nothing is left: neither of a whole filter, nor of one whose meta is gone."""
    for lost in (False, True):
        with UriFilter.create("news", redis=any_server.url, **SETTINGS) as made:
            assert Holder(made, payload="x" * 2000).claim(range(100)) == [0] * 100
        if lost:
            admin.delete(*(shard_key("news", shard, 3, "meta") for shard in range(3)))
        assert drop_filter("news", redis=any_server.url)
        assert admin.keys() == []


def test_leftovers_are_not_taken_over(news, admin, any_server):
    """A filter that is made anew has nothing in flight, whatever an earlier one of its name left."""
    Holder(news).claim(range(100))
    kept = {key: admin.dump(key) for key in admin.keys("*}:[lhi]*")}
    assert len(kept) == 9
    drop_filter("news", redis=any_server.url)
    for key, value in kept.items():
        admin.restore(key, 0, value)
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as again:
        assert Holder(again).claim(range(100)) == [0] * 100
        assert len(in_flight(again, admin)) == 100


def test_rights(news):
    """A right that only shards with claims need is named so."""
    assert refused_scripts(news.config, ("ZLEXCOUNT",)) == ["beat"]
    assert "contains with claims" in refused_scripts(news.config, ("TIME",))
    assert "contains" not in refused_scripts(news.config, ("TIME",))


def test_a_lost_meta_beside_leases(news, admin):
    """A shard that lost its meta is not made anew over what is in flight."""
    Holder(news).claim(range(100))
    admin.delete(shard_key("news", 0, 3, "meta"))
    with pytest.raises(SliceLost):
        UriFilter.create("news", redis=news._session.server, **SETTINGS)
    assert admin.exists(shard_key("news", 0, 3, "leases"))
