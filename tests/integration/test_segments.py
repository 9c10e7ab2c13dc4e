"""A shard may have several bitmaps a slice, its segments: that changes no answer and no bit."""

from __future__ import annotations

import itertools
import random

import pytest
from support.servers import wait_until

from urifilter_redis import ServerUnavailable, SliceLost, UriFilter
from urifilter_redis.bloom import sizing
from urifilter_redis.bloom.digest import PREFIXES, shards_of
from urifilter_redis.bloom.retention import size_first
from urifilter_redis.protocol.config import Settings

SEGMENTS = 18
SHARDS = (1, 3, 18)
KINDS = {
    "blocked": {},
    "classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "ring": {"retention": "ring", "slices": 3, "period": "1d"},
    "ring, write all": {"retention": "ring", "slices": 3, "period": "1d", "write": "all"},
    "ring, last-seen": {"retention": "ring", "slices": 3, "period": "1d", "expire_after": "last-seen"},
}


@pytest.fixture
def of_segments(make_filter, monkeypatch):
    """Return a function that makes a filter of so many shards with ``SEGMENTS`` bitmaps a slice."""

    def make(name: str, shards: int, **settings) -> UriFilter:
        wanted = {"capacity": 20_000, "error_rate": 1e-3, "seed": 7} | settings
        monkeypatch.undo()
        monkeypatch.setattr(sizing, "SLICE_LIMIT", size_first(Settings(**wanted | {"shards": SEGMENTS})).segment_bytes)
        news = make_filter(name, shards=shards, **wanted)
        assert (news.config.shards, news.config.segments) == (shards, SEGMENTS)
        return news

    return make


def bitmaps(news: UriFilter, client) -> dict[str, bytes]:
    """Return the bitmaps of a filter by slice and number of the segment, of the whole filter."""
    found, row = {}, news.config.today.segments
    for shard in range(news.config.shards):
        for slice_ in news.view(shard).slices:
            for number, key in enumerate(map(news._session.keys.shard(shard).slice, slice_.names)):
                found[f"{slice_.name} {shard * row + number}"] = client.getrange(key, 0, -1)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_one_stream_of_calls(server, of_segments, kind):
    """(S, G) = (1, 18), (3, 6), (18, 1): equal answers to all calls, and equal bytes of each segment."""
    filters = [of_segments(f"news{shards}", shards, **KINDS[kind]) for shards in SHARDS]
    drawn = random.Random(kind)

    def same(method: str, *given, **more):
        answers = [getattr(news, method)(*given, **more) for news in filters]
        assert answers == [answers[0]] * len(SHARDS), method
        return answers[0]

    for step in range(8):
        some = [f"https://example.com/{drawn.randrange(4000)}" for _ in range(drawn.choice([1, 20, 700, 2500]))]
        new = same("insert_many", some)
        assert sum(new) <= len(set(some))
        same("contains_many", [*some, *(f"https://example.com/{n}" for n in range(5000, 5050))])
        same("remove" if kind == "counting" else "forget", some[:30])
        same("insert", some[0])
        if kind.startswith("ring") and step % 2:
            for news in filters:
                news.rotate()
        elif kind.startswith("ring"):
            same("ages", some[:100])
    with server.client() as client:
        found = [bitmaps(news, client) for news in filters]
    assert found[0] == found[1] == found[2]
    told = [news.info() for news in filters]
    for name in ("inserted", "forgotten", "segments", "segment_bytes", "over_capacity"):
        assert len({getattr(each, name) for each in told}) == 1, name
    for name, near in (("fill", 1e-9), ("error_rate_now", 0.2)):
        values = [getattr(each, name) for each in told]
        assert values == pytest.approx([values[0]] * len(SHARDS), rel=near), name


def test_claims(server, of_segments):
    """What is in flight, committed, released and rejected is told alike."""
    items = [f"https://example.com/{number}" for number in range(1200)]
    told = []
    for shards in SHARDS:
        news = of_segments(f"news{shards}", shards)
        with news.claims(lease=60) as mine, news.claims(lease=60) as other:
            answers = [mine.claim_many(items[:900]), other.claim_many(items[600:])]
            answers += [mine.commit(items[:300]), mine.release(items[300:500]), mine.reject(items[500:510], "why")]
            answers += [other.claim_many(items[:600]), news.insert_many(items[:700]), news.contains_many(items)]
            told.append((answers, sorted(each.item for each in news.dead_letters())))
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("shards", [3, pytest.param(18, marks=pytest.mark.slow)])
def test_growing(server, of_segments, shards):
    """A growing filter grows by rows: no item is new twice, and none is lost."""
    news = of_segments("news", shards, retention="growing", capacity=40_000, error_rate=1e-5)
    items = [f"https://example.com/{number}" for number in range(60_000)]
    assert sum(news.insert_many(items)) >= len(items) - 2
    assert not any(news.insert_many(items))
    assert [each.segments for each in news.view(0).slices] == [SEGMENTS // shards] * 2
    assert news.info().error_rate_now <= 1e-5


@pytest.mark.parametrize("kind", ["blocked", "ring"])
def test_a_lost_segment(server, of_segments, kind):
    """SliceLost names the segment, to the calls whose items it has; the others are answered."""
    news = of_segments("news", 1, **KINDS[kind])
    items = [f"https://example.com/{number}" for number in range(500)]
    if kind == "ring":
        assert all(news.insert_many(items))
        news.rotate()
    lost = news._session.keys.shard(0).slice("history_1.4" if kind == "ring" else "today.4")
    with server.client() as client:
        client.unlink(lost)
    of_it = [number * 18 >> 12 == 4 for number in shards_of(news._session.digester(items), PREFIXES)]
    assert 0 < sum(of_it) < 100
    for item, is_lost in zip(items[:100], of_it, strict=False):
        if is_lost:
            with pytest.raises(SliceLost, match=lost.replace("{", r"\{")):
                news.insert(item)
        else:
            assert news.insert(item) == (kind != "ring")
    with pytest.raises(SliceLost, match=lost.replace("{", r"\{")):
        news.info()
    news.drop()
    with server.client() as client:
        assert client.keys("*") == []


def test_union(server, of_segments):
    """Each segment is merged into its own."""
    news, other = of_segments("news", 3), of_segments("other", 3)
    items = [f"https://example.com/{number}" for number in range(3000)]
    news.insert_many(items[:2000])
    other.insert_many(items[1000:])
    other.forget(items[1500:1600])
    assert news.union("other") == pytest.approx(1000, rel=0.05)
    assert news.contains_many(items) == [True] * 3000
    assert len(news) == pytest.approx(3000, rel=0.05)


def test_a_filter_with_an_archive(server, make_filter, tmp_path):
    """It has one bitmap a shard: a lower number of shards is refused, and nothing is made."""
    with pytest.raises(ValueError, match="shards=1 is too few for a filter with an archive: 2 are needed"):
        make_filter("news", capacity=10_000_000, error_rate=1e-4, shards=1, archive=f"file://{tmp_path}")
    with server.client() as client:
        assert client.keys("*") == []


def test_a_creator_that_dies(server, of_segments, monkeypatch):
    """The next create goes on at the segment where another process died."""
    from urifilter_redis.flows import lifecycle

    def dying(*given):
        if given[0] == "allocate" and given[-1] == ["7"]:
            raise KeyboardInterrupt
        return create(*given)

    create = lifecycle.calls.create
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle.calls, "create", dying)
        with pytest.raises(KeyboardInterrupt):
            of_segments("news", 1)
    with server.client() as client:
        meta = "urifilter:{news:0}:meta"
        assert (client.hget(meta, "phase"), client.hget(meta, "made")) == (b"creating", b"7")
        news = of_segments("news", 1)
        assert all(news.insert_many([f"https://example.com/{number}" for number in range(500)]))
        assert (client.hget(meta, "phase"), client.hget(meta, "made")) == (b"idle", None)
        news.drop()
        client.set("urifilter:{news:0}:today.5", b"x")
    with pytest.raises(SliceLost, match=r"today\.5: drop the filter first"):
        of_segments("news", 1)


def test_no_memory_for_a_row(server, of_segments):
    """A turn that finds no memory for its last segments frees the first, and can be made later."""
    news = of_segments("news", 1, capacity=2_000_000, **KINDS["ring"])
    assert news.insert("https://example.com/")
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + news.config.bytes * SEGMENTS // 2)
        try:
            with pytest.raises(ServerUnavailable, match="memory"):
                news.rotate()
            assert client.keys("*today_next*") == []
            assert news.insert("https://example.com/2")
        finally:
            client.config_set("maxmemory", 0)
        assert news.rotate().epoch == 1
    assert news.ages(["https://example.com/", "https://example.com/2"]) == [2, 2]


def test_what_a_ring_loses(server, of_segments):
    """More than four bitmaps are not freed by the turn: they expire one after the other, and take nothing along."""
    news = of_segments("news", 1, **KINDS["ring"])
    items = [f"https://example.com/{number}" for number in range(200)]
    with server.client() as client:
        for day in range(3):
            assert all(news.insert_many(items[50 * day :][:50]))
            news.rotate()
        at_once = client.pipeline()
        for number in range(1, SEGMENTS + 1):
            at_once.pttl(f"urifilter:{{news:0}}:gone:2:{number}")
        left = at_once.execute()
        assert left[-1] <= 1800
        assert all(each == -2 or before < each for before, each in itertools.pairwise(left))
        assert news.ages(items) == [0] * 50 + [3] * 50 + [2] * 50 + [0] * 50
        wait_until(lambda: client.keys("*gone*") == [], "the freed bitmaps")
        assert news.info().inserted == 100
