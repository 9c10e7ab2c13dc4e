"""Growing: the next slice is made by whoever notices, once, and the error rate stays under what was asked for."""

from __future__ import annotations

import collections
import itertools
import subprocess
import sys

import pytest
from support import crawler
from support.pipelines import pipelines
from support.proxy import Fault, Proxy, at_random, first
from support.shard_keys import shard_key

from urifilter_redis import AnswerLost, FilterFull, Timeouts, UriFilter
from urifilter_redis.bloom import retention
from urifilter_redis.bloom.sizing import SEGMENT_LIMIT
from urifilter_redis.flows import turn
from urifilter_redis.protocol.config import Config, Settings


@pytest.mark.nightly
@pytest.mark.parametrize("capacity", [1_000, pytest.param(4_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", ["blocked", "classic"])
def test_error_rate_at_twenty_times_the_first_capacity(layout, capacity, valkey):
    """Twenty times the items that it was made for: no false negative, false positives under the asked 1 in 1,000."""
    count = 20 * capacity
    settings = {"capacity": capacity, "error_rate": 1e-3, "retention": "growing", "layout": layout}
    with UriFilter.create("news", redis=valkey.url, shards=2, seed=1, **settings) as news:
        told = sum(age == 0 for age in news.insert_ages(range(count)))
        assert count * (1 - 1e-3) < told <= count
        assert 0 not in news.ages(range(count))
        probes = 3 * count // 2
        found = sum(age > 0 for age in news.ages(range(10**6, 10**6 + probes)))
        assert found / probes < 1e-3
        info = news.info()
        assert info.error_rate_now < info.error_rate_at_capacity == 1e-3
        assert len(info.live_slices) == 5
        assert not info.over_capacity
        assert [each.name for each in info.live_slices] == ["today", *(f"history_{n}" for n in range(1, 5))]
        assert all(each.inserted <= each.capacity for each in info.live_slices)


def test_each_shard_grows_at_its_own_pace(server):
    """One shard full, the others not: it alone has a second slice."""
    with UriFilter.create(
        "news", redis=server.url, capacity=800, error_rate=1e-6, shards=4, retention="growing"
    ) as news:
        count = 0
        while news.epoch() == 0:
            count += 10
            news.insert_many(range(count - 10, count))
        epochs = [len(news.view(shard).slices) for shard in range(4)]
        with server.client() as admin:
            meta = [admin.hgetall(shard_key("news", shard, 4, "meta")) for shard in range(4)]
        assert {int(each[b"epoch"]) for each in meta} == {0, 1}
        assert epochs == [int(each[b"epoch"]) + 1 for each in meta]
        assert 0 not in UriFilter.open("news", redis=server.url).ages(range(count))


def test_an_item_given_many_times_takes_one_place(any_server):
    """Near the limit the different new items are counted."""
    with UriFilter.create("news", redis=any_server.url, capacity=500, error_rate=1e-8, retention="growing") as news:
        news.insert("a")
        assert news.insert_ages(["b"] * 500).count(0) == 1
        assert news.epoch() == 0


@pytest.mark.parametrize("command", ["insert", "claim"])
def test_forgotten_items_take_places_again(any_server, command):
    """A full slice has their bits still, and no room for them: another one is made."""
    with UriFilter.create("news", redis=any_server.url, capacity=200, error_rate=1e-8, retention="growing") as news:
        ask = news.insert_many if command == "insert" else news.claims(beats=False).claim_many
        assert news.insert_many(range(200)) == [True] * 200
        assert news.forget(range(100)) == [True] * 100
        assert ask(range(100)) == [True] * 100
        assert news.epoch() == 1
        assert all(each.inserted <= each.capacity for each in news.info().live_slices)


def test_ages(any_server):
    """The slice in which an item is, counted from the newest."""
    with UriFilter.create("news", redis=any_server.url, capacity=10, error_rate=1e-8, retention="growing") as news:
        news.insert_many(range(10))
        news.insert_many(range(10, 30))
        news.insert_many(range(30, 40))
        assert news.ages([0, 9, 10, 29, 30, 39]) == [3, 3, 2, 2, 1, 1]


@pytest.mark.slow
def test_many_notice_at_once(server, tmp_path):
    """6 processes' inserts through a bad network make it grow again and again: new exactly once, one slice a turn."""
    settings = {"capacity": 50, "error_rate": 1e-8, "retention": "growing", "shards": 3}
    UriFilter.create("news", redis=server.url, **settings).close()
    out = tmp_path / "new"
    with Proxy(server.port, at_random(5, 0.1), late_after=30) as proxy:
        arguments = [sys.executable, crawler.__file__, proxy.url, "news", "3000"]
        running = [subprocess.Popen([*arguments, str(seed), "100", "2", "1", str(out)]) for seed in range(3)]
        assert [each.wait(120) for each in running] == [0] * 3
    told = collections.Counter(out.read_text().split())
    assert len(told) == 3000
    assert set(told.values()) == {1}
    with UriFilter.open("news", redis=server.url) as news:
        info = news.info()
        assert not info.over_capacity
        for each in info.live_slices[1:]:  # nobody made a slice before the one before it was full
            assert each.inserted > 0.5 * each.capacity


def test_killed_while_it_grows(server):
    """Whoever grows a shard dies before or after any of its commands: the next insert goes on, one slice is made."""
    for count in range(1, 6):
        settings = {"capacity": 10, "error_rate": 1e-8, "retention": "growing"}
        with UriFilter.create("news", redis=server.url, **settings) as news:
            news.insert_many(range(10))
            running = pipelines(turn.grow(news._session, 0, 5), news._connector)
            list(itertools.islice(running, count))
            running.close()
            with UriFilter.open("news", redis=server.url) as other:
                assert other.insert_ages(range(5, 20)) == [2] * 5 + [0] * 10
                assert other.epoch() == 1
                other.drop()


def test_full_when_no_slice_can_be_made(any_server, monkeypatch):
    """FilterFull says what to do; nothing of the call that did not fit is inserted, and what fits still is."""
    monkeypatch.setattr(retention, "GROWN_LIMIT", 2)
    with UriFilter.create("news", redis=any_server.url, capacity=10, error_rate=1e-8, retention="growing") as news:
        news.insert_many(range(10))
        news.insert_many(range(10, 28))
        with pytest.raises(FilterFull, match="make a filter of a larger capacity") as caught:
            news.insert_many(range(100, 105))
        assert caught.value.answers == [None] * 5
        assert news.ages(range(100, 105)) == [0] * 5
        assert news.insert_ages([200, 201]) == [0, 0]
        assert news.insert_ages([0, 15, 200]) == [2, 1, 1]
        with pytest.raises(FilterFull):
            news.insert(300)


def test_in_doubt_and_then_full(any_server, monkeypatch):
    """A call that may still run has no answer yet, although its repeat finds no room."""
    monkeypatch.setattr(retention, "GROWN_LIMIT", 1)
    with (
        UriFilter.create("news", redis=any_server.url, capacity=10, error_rate=1e-8, retention="growing") as news,
        Proxy(any_server.port) as proxy,
        UriFilter.open("news", redis=proxy.url, timeouts=Timeouts(connect=10, reply=2, total=1)) as far,
    ):
        far.insert("x")
        proxy.plan = first(Fault.DELAY)
        news.insert_many(range(9))
        with pytest.raises(AnswerLost) as lost:
            far.insert_many(["a", "b"])
        assert lost.value.answers == [None, None]
        proxy.plan = first()
        with pytest.raises(FilterFull):
            far.insert_many(["c", "d"])


def test_seen_items_make_nothing_grow(server):
    """A full filter that is only asked about what it has seen stays as it is."""
    with UriFilter.create("news", redis=server.url, capacity=100, error_rate=1e-8, retention="growing") as news:
        news.insert_many(range(100))
        for _ in range(5):
            assert 0 not in news.insert_ages(range(100))
        assert news.epoch() == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["blocked", "classic"])
@pytest.mark.parametrize("rate", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("capacity", [1, 1000, 10**6, 10**8])
def test_slices(capacity, rate, layout):
    """Each is twice the one before until the limit, within its share; the shares stay under the error rate."""
    if layout == "classic" and rate == 1e-8 and capacity >= 10**8:
        with pytest.raises(ValueError, match="cannot grow to more than .* times .* take layout blocked"):
            Settings(capacity=capacity, error_rate=rate, layout=layout, retention="growing")
        return
    config = Config.new(Settings(capacity=capacity, error_rate=rate, layout=layout, retention="growing"))
    made = [retention.growing_slice(config, index) for index in range(retention.GROWN_LIMIT)]
    assert sum(each.shard_capacity for each in made if each) >= 20 * made[0].shard_capacity
    assert sum(each.error_rate for each in made if each) < rate
    total = 0.0
    for index, each in enumerate(made):
        if each is None:
            continue
        assert each.k == config.k
        assert each.segment_bytes <= SEGMENT_LIMIT
        assert each.error_rate_at(each.shard_capacity * each.shards) <= each.error_rate * 1.02
        total += each.error_rate_at(each.shard_capacity * each.shards)
        if index and each.segment_bytes < SEGMENT_LIMIT // 2:
            assert each.shard_capacity == 2 * made[index - 1].shard_capacity
    assert total < rate
    assert retention.growing_slice(config, retention.GROWN_LIMIT) is None


def test_shares_add_up():
    """Basel: 6/π² times the sum of 1/i² is 1."""
    assert sum(retention.growing_share(1e-4, i) for i in range(100_000)) == pytest.approx(1e-4, rel=1e-4)
