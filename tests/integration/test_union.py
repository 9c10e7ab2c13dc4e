"""Union: what several filters have seen, one has seen."""

from __future__ import annotations

import itertools
import json
import threading

import pytest
from support import cli
from support.killer import Killer
from support.pipelines import pipelines

from urifilter_redis import ConfigMismatch, FilterNotFound, OverCapacity, SliceLost, UriFilter
from urifilter_redis.flows import rotation, union

PRECISE = {"capacity": 20_000, "error_rate": 1e-8}
TIMED = [
    {"retention": "ring", "slices": 3, "period": "1d"},
    {"retention": "ring", "slices": 3, "period": "1d", "write": "all"},
    {"retention": "rolling", "slices": 3, "period": "1d"},
]


def pair(server, name="all", **settings):
    target = UriFilter.create(name, redis=server.url, **PRECISE | settings)
    return target, UriFilter.create("monday", redis=server.url, **target.settings)


@pytest.mark.sampled
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("layout", ["blocked", "classic"])
def test_forever(server, layout, shards):
    """All that either has seen, and nothing else; the source stays as it is; again adds nothing."""
    target, source = pair(server, layout=layout, shards=shards)
    target.insert_many(range(1000))
    source.insert_many(range(500, 3000))
    assert target.union("monday") == pytest.approx(2000, rel=0.02)
    assert 0 not in target.ages(range(3000))
    assert set(target.ages(range(3000, 8000))) == {0}
    assert source.ages([0, 500]) == [0, 1]
    assert target.inserted() == pytest.approx(3000, rel=0.02)
    assert target.union("monday") == 0


def test_several_sources(any_server):
    """Each is merged; all are looked at before the first is."""
    target, source = pair(any_server)
    tuesday = UriFilter.create("tuesday", redis=any_server.url, **target.settings)
    source.insert("a")
    tuesday.insert("b")
    with pytest.raises(FilterNotFound):
        target.union("monday", "nope")
    assert target.ages(["a", "b"]) == [0, 0]
    assert target.union("monday", "tuesday") == 2
    assert target.ages(["a", "b"]) == [1, 1]
    with pytest.raises(ValueError, match="cannot be merged into itself"):
        target.union("monday", "all")


def test_the_next_checkpoint_has_it(any_server, folder, make_filter):
    """Also a union of so few items that the count of the target's stays."""
    where = {"redis": any_server.url, "archive": folder}
    with UriFilter.create("all", **where, **PRECISE) as target:
        target.insert_many(range(2000))
        target.checkpoint()
        few = make_filter("few", **target.settings)
        few.insert_many(["a", "b", "c"])
        target.union("few")
        assert target.checkpoint().shards == 1
    any_server.ask("flushall")
    with UriFilter.open("all", **where) as target:
        assert target.contains_many(["a", "b", "c"]) == [True] * 3


def test_the_next_checkpoint_has_it_in_closed_slices(any_server, folder, make_filter):
    """Those of the checkpoint before are taken over only if they have not changed since."""
    where = {"redis": any_server.url, "archive": folder}
    with UriFilter.create("all", **where, **PRECISE | TIMED[0]) as target:
        few = make_filter("few", **target.settings)
        few.insert_many(["a", "b", "c"])
        for each in (few, target):  # its slice was closed before the target's new one was opened
            each.rotate()
        target.checkpoint()
        target.union("few")
        target.checkpoint()
    any_server.ask("flushall")
    with UriFilter.open("all", **where) as target:
        assert target.ages(["a", "b", "c"]) == [2, 2, 2]


def test_forgotten_items(server):
    """Seen in either is seen; what only one has forgotten, and the other never saw, stays new."""
    target, source = pair(server, shards=2)
    target.insert_many(["both", "target forgot", "target saw, source forgot", "both forgot"])
    source.insert_many(["both", "target forgot", "source forgot", "target saw, source forgot", "both forgot"])
    target.forget(["target forgot", "both forgot"])
    source.forget(["source forgot", "target saw, source forgot", "both forgot"])
    target.union("monday")
    items = ["both", "target forgot", "source forgot", "target saw, source forgot", "both forgot"]
    assert target.ages(items) == [1, 1, 0, 1, 0]
    assert target.unique(items) == ["source forgot", "both forgot"]


def test_forgotten_items_while_others_fill_a_growing_filter(any_server, monkeypatch):
    """It grows once more; what was forgotten and the source has seen is seen."""
    target, source = (
        UriFilter.create(name, redis=any_server.url, capacity=100, retention="growing", shards=1, seed=7)
        for name in ("all", "monday")
    )
    items = [f"forgotten {number}" for number in range(50)]
    for each in (target, source):
        each.insert_many(items)
    target.forget(items)
    filled, grow = [], union.grow

    def grow_and_fill(session, shard, count=None):
        yield from grow(session, shard, count)
        if count and not filled:
            free = [int(each) for each in any_server.ask("hmget", "urifilter:{all:0}:meta", "limit", "inserted")]
            filled.append(target.insert_many(range(free[0] - free[1])))

    monkeypatch.setattr(union, "grow", grow_and_fill)
    target.union("monday")
    assert filled
    assert 0 not in target.ages(items)


def test_forgotten_in_both_long_ago(server):
    """What both have forgotten does not come back when the older entry of the two expires."""
    target, source = pair(server, retention="ring", slices=3, period="1d")
    target.insert("a")
    target.forget(["a"])
    source.insert("a")
    source.forget(["a"])
    target.rotate()
    target.rotate()
    target.union("monday")
    for _ in range(4):
        assert target.contains("a") is False
        target.rotate()


@pytest.mark.sampled
@pytest.mark.parametrize("settings", TIMED, ids=lambda s: f"{s['retention']}-{s.get('write', '')}".rstrip("-"))
def test_nothing_expires_early(server, settings):
    """What the source had stays for as long as if it had been inserted at the union, or as it would in the source."""
    target, source = pair(server, shards=2, **settings)
    target.rotate()
    for day in range(3):
        source.insert_many([f"{day}-{i}" for i in range(50)])
        if day < 2:
            source.rotate()
    items = [f"{day}-{i}" for day in range(3) for i in range(50)]
    target.insert_many(["x", "y"])
    target.union("monday")
    assert 0 not in target.ages([*items, "x", "y"])
    for left in (2, 1):  # rotations that the newest day has in both
        source.rotate()
        target.rotate()
        alive = [item for item in items if source.contains(item)]
        assert len(alive) == 50 * left
        assert 0 not in target.ages(alive)
    for _ in range(3):
        target.rotate()
    assert set(target.ages(items)) == {0}
    assert not target.info().over_capacity


def test_counts_of_a_ring_that_writes_all(any_server):
    """Each item counts once, though every slice has it."""
    target, source = pair(any_server, retention="ring", slices=4, period="1d", write="all")
    for _ in range(3):
        target.rotate()
    source.insert_many(range(1000))
    assert target.union("monday") == pytest.approx(1000, rel=0.02)
    info = target.info()
    assert info.inserted == pytest.approx(1000, rel=0.02)
    assert not info.over_capacity


@pytest.mark.sampled
def test_growing(server):
    """Slices of one size meet; the target grows as far as the source has; ages are those of the slices."""
    settings = {"retention": "growing", "capacity": 100, "shards": 2}
    target, source = pair(server, **settings)
    source.insert_many(range(1000, 2000))
    assert target.union("monday") == pytest.approx(1000, rel=0.05)
    assert target.union("monday") == 0
    assert 0 not in target.ages(range(1000, 2000))
    assert set(target.ages(range(5000, 9000))) == {0}
    assert len(target.info().live_slices) == len(source.info().live_slices)
    assert target.insert_ages(range(3000, 3500)) == [0] * 500
    assert not target.info().over_capacity


@pytest.mark.parametrize("layout", ["blocked", pytest.param("classic", marks=pytest.mark.slow)])
def test_growing_filters_that_are_full(server, layout):
    """Slice on slice would break the error rate: refused with the rate that it would have, and nothing is written."""
    target, source = pair(server, retention="growing", capacity=1000, error_rate=1e-3, layout=layout)
    target.insert_many(range(3000))
    source.insert_many(range(3000, 6000))
    with server.client() as admin:
        before = [admin.get(key) for key in sorted(admin.keys("urifilter:{all:0}:*today*"))]
        with pytest.raises(
            OverCapacity, match=r"about [56],\d{3} items .* not for 0.001: nothing was merged"
        ) as caught:
            target.union("monday")
        assert before == [admin.get(key) for key in sorted(admin.keys("urifilter:{all:0}:*today*"))]
    assert target.inserted() == pytest.approx(3000, abs=20)
    assert not target.info().over_capacity
    assert target.union("monday", over_capacity=True) == pytest.approx(3000, rel=0.05)
    info = target.info()
    assert info.over_capacity
    assert info.error_rate_now == pytest.approx(caught.value.error_rate, rel=0.1)
    assert sum(map(bool, target.ages(range(10_000, 30_000)))) / 20_000 == pytest.approx(info.error_rate_now, rel=0.3)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "settings",
    [
        {"shards": 3},
        TIMED[0] | {"period_capacity": 3000},
        *TIMED[1:],
        {"retention": "ring", "slices": 3, "period": "1d", "expire_after": "last-seen"},
        {"retention": "rolling", "slices": 3, "period": "1d", "expire_after": "last-seen"},
    ],
    ids=str,
)
def test_over_capacity(server, settings):
    """What the filter is made for is merged, though no item is in both; more than that is told, and taken on a yes."""
    settings = {"capacity": 3000, "error_rate": 1e-4} | settings
    target, source = pair(server, **settings)
    target.insert_many(range(1500))
    source.insert_many(range(1500, 2900))
    assert target.union("monday") == pytest.approx(1400, rel=0.05)
    assert target.union("monday") == 0
    assert not target.info().over_capacity
    source.insert_many(range(2900, 4500))
    with pytest.raises(OverCapacity):
        target.union("monday")
    assert not target.info().over_capacity
    target.union("monday", over_capacity=True)
    assert target.info().over_capacity
    assert 0 not in target.ages(range(4500))


def test_sources_together(any_server):
    """Each fits alone, and both do not: nothing is merged, of the first neither. What both have counts once."""
    target, _ = pair(any_server, capacity=1000, error_rate=1e-4)
    for name in ("tuesday", "wednesday"):
        with UriFilter.create(name, redis=any_server.url, **target.settings) as source:
            source.insert_many(f"{name}-{i}" for i in range(600))
            source.insert_many(f"both-{i}" for i in range(300))
    with pytest.raises(OverCapacity):
        target.union("tuesday", "wednesday")
    assert target.inserted() == 0
    assert target.union("tuesday") == pytest.approx(900, rel=0.05)
    with UriFilter.create("thursday", redis=any_server.url, **target.settings) as source:
        source.insert_many(f"both-{i}" for i in range(300))
    assert target.union("thursday", "tuesday") == 0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"retention": "rolling", "slices": 4, "period": "1d"}, {"slices": 5}),
        ({"retention": "ring", "slices": 3, "period": "1d"}, {"period": "2d"}),
        ({"retention": "rolling", "slices": 4, "period": "1d"}, {"expire_after": "last-seen"}),
    ],
    ids=str,
)
def test_unequal_pairs(any_server, ours, theirs):
    """The window, the period and the time from which a life counts may differ if the slices are of one size."""
    target = UriFilter.create("all", redis=any_server.url, **PRECISE | ours)
    source = UriFilter.create("monday", redis=any_server.url, **target.settings | theirs)
    for day in range(3):
        source.insert_many(range(100 * day, 100 * day + 100))
        source.rotate()
    alive = [item for item in range(300) if source.contains(item)]
    assert target.union("monday") == pytest.approx(len(alive), rel=0.05)
    assert 0 not in target.ages(alive)


@pytest.mark.sampled
@pytest.mark.parametrize("settings", TIMED, ids=lambda s: f"{s['retention']}-{s.get('write', '')}".rstrip("-"))
@pytest.mark.parametrize("who", ["source", "target"])
def test_slices_that_turn_meanwhile(any_server, settings, who, sample):
    """A rotation of either filter between any two steps of a union: everything arrives, whole, and stays."""
    from urifilter_redis.flows.union import union

    for count in sample(range(4, 56, 2), 8):
        target, source = pair(any_server, capacity=60_000, **settings)
        for filter_ in (target, source):
            filter_.rotate()
            filter_.rotate()
            filter_.insert_many([f"{filter_.name}-{i}" for i in range(100)])
        running = pipelines(union(target._session, ["monday"]), target._connector)
        list(itertools.islice(running, count))
        {"source": source, "target": target}[who].rotate()
        list(running)
        assert 0 not in target.ages([f"monday-{i}" for i in range(100)]), count
        assert 0 not in target.ages([f"all-{i}" for i in range(100)]), count
        target.drop()
        source.drop()


@pytest.mark.sampled
def test_our_server_comes_back_older(make_server, sample):
    """It is killed between two steps, and comes back as it was some steps before: the union merges all shards anew."""
    with make_server() as server:
        target, source = pair(server, capacity=60_000, shards=2)
        source.insert_many(range(1000))
        with server.client() as admin:
            target.union("monday")  # the scripts are loaded now
            steps = sum(1 for _ in pipelines(union.union(target._session, ["monday"]), target._connector))
            assert steps > 6
            for count in sample(range(3, steps), 4, most=8):
                target.drop()
                target = UriFilter.create("all", redis=server.url, **target.settings)
                running = pipelines(union.union(target._session, ["monday"]), target._connector)
                list(itertools.islice(running, 2))
                admin.save()
                list(itertools.islice(running, count - 2))
                server.kill()
                server.start()
                list(running)
                assert 0 not in target.ages(range(1000)), count


def test_a_rotation_that_somebody_left(any_server):
    """The union finishes it first."""
    target, source = pair(any_server, retention="rolling", slices=3, period="1d")
    source.insert("a")
    for _ in pipelines(rotation.rotate(target._session), target._connector):
        if target.info().phase == "rotating":
            break
    assert target.info().phase == "rotating"
    target.union("monday")
    assert target.info().phase == "idle"
    assert "a" in target


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        *(pytest.param(each, marks=pytest.mark.slow) for each in ({"retention": "growing", "capacity": 300}, TIMED[2])),
    ],
    ids=str,
)
def test_killed_at_every_step(any_server, settings):
    """SIGKILL before and after each step of a union: begun anew, all is there, and nothing was lost meanwhile."""
    what = "union", any_server.url, "", "monday"
    target, source = pair(any_server, "news", **settings)
    source.insert_many(range(2000, 2300))  # first slices of the same items: others would be over capacity together
    source.insert_many(range(1000))
    source.forget([5])
    target.insert_many(range(2000, 2300))
    with Killer() as killer:
        number, reached = 1, True
        while reached:
            for when in ("before", "after"):
                reached = killer.kill(number, when, *what)
                assert 0 not in target.ages(range(2000, 2300))
                assert target.contains(5) is False
            number += 1
    assert number > 4
    target.union("monday")
    assert target.ages([4, 5, 6]).count(0) == 1
    assert target.ages(range(1000)).count(0) == 1
    assert set(target.ages(range(3000, 5000))) == {0}
    assert target.inserted() == pytest.approx(1300, rel=0.05)
    assert not any_server.ask("keys", "*merging*")


@pytest.mark.slow
def test_inserts_go_on(valkey):
    """While a union runs, others insert: nothing is told twice or lost."""
    target, source = pair(valkey, capacity=300_000)
    source.insert_many(range(50_000))
    told = []

    def insert() -> None:
        with UriFilter.open("all", redis=valkey.url) as other:
            told.extend(item for start in range(0, 50_000, 500) for item in other.unique(range(start, start + 500)))

    thread = threading.Thread(target=insert)
    thread.start()
    target.union("monday")
    thread.join()
    assert len(told) == len(set(told))
    assert 0 not in target.ages(range(50_000))


@pytest.mark.parametrize(
    ("ours", "other", "named"),
    [
        ({}, {"capacity": 30_000}, ["capacity"]),
        ({}, {"error_rate": 1e-3}, ["error_rate"]),
        ({}, {"layout": "classic"}, ["layout"]),
        ({}, {"shards": 2}, ["shards"]),
        ({}, {"seed": 5}, ["seed"]),
        ({}, {"hash": "md5", "seed": None}, ["hash", "seed"]),
        ({}, {"normalize": "whatwg"}, ["normalize"]),
        ({}, {"retention": "growing"}, ["retention"]),
        # first slices may be of one size, and later ones are not
        ({"retention": "growing", "capacity": 1000, "error_rate": 1e-4}, {"capacity": 1001}, ["capacity"]),
    ],
    ids=str,
)
def test_what_cannot_be_merged(any_server, ours, other, named):
    """Other geometry, hash or seed: refused, with the option's name and both values, but for a seed's."""
    target, _ = pair(any_server, **ours)
    UriFilter.create("other", redis=any_server.url, **target.settings | {"shards": None} | other).close()
    with pytest.raises(ConfigMismatch, match=min(named)) as caught:
        target.union("other")
    assert set(named) <= set(caught.value.differences)
    assert other.get("seed") is None or str(caught.value).endswith("seed is another (create --like makes one that can)")
    assert "capacity" not in other or f"capacity is {other['capacity']} and not" in str(caught.value)


def test_lost_source(any_server):
    """A bitmap of the source that is gone."""
    target, _ = pair(any_server)
    any_server.ask("delete", "urifilter:{monday:0}:today")
    with pytest.raises(SliceLost, match="monday"):
        target.union("monday")


@pytest.mark.slow
def test_command_line(any_server):
    """``create --like`` and ``union``; what is refused and why."""
    where = ("--redis", any_server.url)
    cli.run("create", "monday", "--capacity", "10k", "--normalize", "whatwg", *where)
    cli.run("create", "all", "--like", "monday", *where)
    cli.run("add", "--filter", "monday", *where, given=b"http://a.example\nhttp://b.example\n")
    assert cli.run("union", "all", "monday", *where)[0] == b"all: about 2 items added from monday\n"
    assert json.loads(cli.run("union", "all", "monday", "--json", *where)[0])["added"] == 0
    assert cli.run("union", "-q", "all", "monday", *where) == (b"", "")
    cli.run("add", "--filter", "monday", *where, given=b"".join(b"http://a.example/%d\n" % i for i in range(20_000)))
    _, err = cli.run("union", "all", "monday", *where, code=2)
    assert "nothing was merged; say over_capacity=True (--yes) to merge all the same" in err
    assert json.loads(cli.run("union", "all", "monday", "--yes", "--json", *where)[0])["added"] > 15_000
    cli.run("create", "other", "--capacity", "20k", *where)
    _, err = cli.run("union", "all", "other", *where, code=2)
    assert "capacity is 20000 and not 10000" in err
    assert "create --like" in err
    _, err = cli.run("create", "x", "--like", "monday", "--capacity", "5k", *where, code=2)
    assert "leave out --capacity" in err
    assert "--capacity is missing" in cli.run("create", "x", *where, code=2)[1]
    assert "no such filter" in cli.run("create", "x", "--like", "nope", *where, code=2)[1]
    cli.run("union", "all", *where, code=2)
