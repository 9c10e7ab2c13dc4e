"""Layout redisbloom, as users meet it: what it does beside the other layouts, and what it refuses."""

from __future__ import annotations

import pytest
from support import servers

from urifilter_redis import ServerUnavailable, SliceLost, UriFilter, UriFilterError, drop_filter
from urifilter_redis.bloom.sizing import LEAST_RESERVED
from urifilter_redis.protocol.config import Settings

RING = {"retention": "ring", "slices": 3, "period": "1d"}
RETENTIONS = {"forever": {}, "growing": {"retention": "growing"}, "ring": RING | {"capacity": 1500}}


def made(bloom, name="news", **settings):
    return UriFilter.create(name, redis=bloom.url, layout="redisbloom", **{"capacity": 1000} | settings)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_whole_life(clients, bloom, retention):
    """Insert, ask, forget, claim, rotate or grow, describe, open and drop."""
    settings = {"capacity": 500, "error_rate": 1e-6, "shards": 2, "layout": "redisbloom"} | RETENTIONS[retention]
    with clients.create("news", redis=bloom.url, **settings) as news:
        assert news.insert_many(range(400)) == [True] * 400
        assert news.insert_many([1, 1000, 1000]) == [False, True, False]
        assert news.forget([7, 7]) == [True, False]
        assert news.contains_many([6, 7]) == [True, False]
        assert news.insert(7)
        if retention == "ring":
            assert news.rotate().epoch == 1
            assert news.insert_ages([3, 2000]) == [2, 0]
            assert news.ages([3, 2000], max_age=1) == [0, 1]
        if retention == "growing":
            assert sum(news.insert_many(range(3000, 5000))) == 2000
            assert news.contains_many(range(400)) == [True] * 400
        found = news.info()
        assert found.layout == "redisbloom"
        assert 0 < found.error_rate_now < found.error_rate_at_capacity <= 1e-6
        assert found.memory > sum(each.size for each in found.live_slices)
        assert found.inserted == {"forever": 402, "growing": 2402, "ring": 403}[retention]
        assert not found.over_capacity
    with clients.open("news", redis=bloom.url) as news:
        assert not news.insert(3)
        news.drop()
    with bloom.client() as admin:
        assert admin.keys("*news*") == []


def test_past_its_capacity(bloom):
    """The module takes more memory, and the rate stays within what was asked; ``info`` says so."""
    with made(bloom, error_rate=1e-3) as news:
        new = sum(news.insert_many(range(2500)))
        assert 2490 < new <= 2500
        assert all(news.contains_many(range(2500)))
        found = news.info()
        assert found.over_capacity
        assert found.error_rate_now == pytest.approx(1e-3)


def test_claims(bloom):
    """What a crawler claims, and does not commit, comes back."""
    with made(bloom) as news, news.claims() as mine:
        assert mine.claim_many(["a", "b", "c", "a"]) == [True, True, True, False]
        assert news.insert("a") is False
        assert mine.commit(["a"]) == [True]
        assert mine.release(["b"]) == [True]
        assert [each.item for each in mine.reclaim(10)] == ["b"]
        assert not mine.claim("a")


REFUSED = {
    "retention rolling": {"retention": "rolling", "slices": 3, "period": "1d"},
    "more than 4 slices": RING | {"slices": 5},
    "write all": RING | {"write": "all"},
    "expire_after last-seen": RING | {"expire_after": "last-seen"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_is_not_for(what):
    """A setting that it cannot have is refused with the layout that can."""
    with pytest.raises(ValueError, match=f"layout redisbloom is not for {what}: take layout blocked"):
        Settings(capacity=1000, layout="redisbloom", **REFUSED[what])


def test_what_it_cannot_do(bloom, folder):
    """Likewise as it is asked for."""
    with pytest.raises(ValueError, match="layout redisbloom has no archive.*take layout blocked"):
        made(bloom, archive=folder)
    with made(bloom) as news, made(bloom, "other"):
        with pytest.raises(UriFilterError, match="redisbloom cannot be merged.*take layout blocked"):
            news.union("other")
        with pytest.raises(ValueError, match="remove is for layout counting"):
            news.remove(["a"])
        with pytest.raises(UriFilterError, match="archive"):
            news.checkpoint()


def test_server_without_the_module(any_server, make_server):
    """An error that says so, at create and at open; nothing is made."""
    with pytest.raises(ServerUnavailable, match=r"layout redisbloom needs BF.INFO, .*take layout blocked"):
        made(any_server)
    with any_server.client() as admin:
        assert admin.keys() == []
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news, any_server.client() as admin:
        admin.hset(news._session.keys.shard(0).meta, mapping=of_another_layout(news))
    with pytest.raises(ServerUnavailable, match="layout redisbloom needs BF.INFO"):
        UriFilter.open("news", redis=any_server.url)
    drop_filter("news", redis=any_server.url)


def of_another_layout(news) -> dict[str, str]:
    """Return the fields of meta that a server would have whose module is not loaded any more."""
    return {"layout": "redisbloom", "fixed": news.config.fixed(0).replace("blocked", "redisbloom")}


def test_valkey(valkey):
    """Its module has not been tried."""
    with pytest.raises(ServerUnavailable, match="layout redisbloom"):
        made(valkey)


def test_slice_that_is_lost(bloom):
    """A slice that is missing, or another program's, is an error, in every call and in ``info``."""
    with made(bloom) as news, bloom.client() as admin:
        news.insert("a")
        today = news._session.keys.shard(0).slice("today")
        for instead in (None, ("BF.ADD", today, "a")):
            admin.unlink(today)
            if instead:
                admin.execute_command(*instead)
            for ask in (news.insert, news.contains):
                with pytest.raises(SliceLost, match="LOST .*today is missing, or is no Bloom filter for 1000 items"):
                    ask("b")
            with pytest.raises(SliceLost, match="today is missing"):
                news.info()


def test_failure_in_the_middle_of_a_call(bloom):
    """The items that were answered keep their answers; the others are asked about again, and the error has both."""
    with made(bloom, error_rate=1e-6) as news, bloom.client() as admin:
        today = news._session.keys.shard(0).slice("today")
        admin.unlink(today)
        admin.execute_command("BF.RESERVE", today, 1e-6, 1000, "NONSCALING")
        assert sum(news.insert_many(range(900))) == 900
        with pytest.raises(UriFilterError, match="MODULE .*non scaling filter is full") as failed:
            news.insert_many([*range(890, 1005)])
        answers = failed.value.answers
        assert answers == [*[False] * 10, *[True] * 100, *[None] * 5]
        with pytest.raises(UriFilterError, match="MODULE"):
            news.insert_many([*range(890, 1005)], retry=failed.value)
        assert news.contains_many(range(1005)) == [*[True] * 1000, *[False] * 5]
        admin.execute_command("BF.RESERVE", f"{today}-", 1e-6, 1000)
        assert admin.rename(f"{today}-", today)  # now there is room
        assert news.insert_many([*range(890, 1005)], retry=failed.value) == [*answers[:110], *[True] * 5]


def test_small_filter_is_known_from_another_programs(bloom):
    """The module makes a filter for 100 items where a key is missing; so none of ours is for so few."""
    with made(bloom, capacity=100) as news, bloom.client() as admin:
        assert admin.execute_command("BF.INFO", news._session.keys.shard(0).slice("today"), "CAPACITY") == [
            LEAST_RESERVED
        ]


@pytest.mark.slow
def test_exactly_once_over_a_restart(make_server):
    """The module's filters come back from the append-only file, with the records of calls."""
    bloom = make_server(servers.BLOOM, appendonly="yes", appendfsync="always")
    with made(bloom) as news:
        assert news.insert_many(range(500)) == [True] * 500
        bloom.kill()
        bloom.start()
        assert news.insert_many(range(510)) == [*[False] * 500, *[True] * 10]
