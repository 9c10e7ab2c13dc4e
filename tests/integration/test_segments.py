"""A shard may have several bitmaps a slice, its segments: that changes no answer and no bit."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
from redis.exceptions import ResponseError
from support.archives import export_to, import_from
from support.room import leave_room, make_room
from support.servers import BLOOM, DEFAULT, wait_until
from support.servers import KINDS as SERVERS
from support.shard import md5
from support.states import dumped
from support.turning import make_late

from urifilter_redis import ArchiveError, ServerFull, ServerUnavailable, SliceLost, UriFilter, UriFilterError
from urifilter_redis.archive.export import ExportedFilter
from urifilter_redis.bloom import sizing
from urifilter_redis.bloom.digest import shards_of
from urifilter_redis.bloom.retention import size_first
from urifilter_redis.engine.queries import ask
from urifilter_redis.flows import auto_rotate, rotation, turn
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.config import Settings

SEGMENTS = 18
SHARDS = (1, 3, 18)
HOLDER = "a0112233aabbccdd"
LIMITS = {name: getattr(sizing, name) for name in ("SEGMENT_LIMIT", "MODULE_LIMIT")}
KINDS = {
    "blocked": {},
    "classic": {"layout": "classic"},
    "counting": {"layout": "counting"},
    "ring": {"retention": "ring", "slices": 3, "period": "1d"},
    "ring, write all": {"retention": "ring", "slices": 3, "period": "1d", "write": "all"},
    "ring, last-seen": {"retention": "ring", "slices": 3, "period": "1d", "expire_after": "last-seen"},
    "rolling": {"retention": "rolling", "slices": 3, "period": "1d"},
    "rolling, last-seen": {"retention": "rolling", "slices": 3, "period": "1d", "expire_after": "last-seen"},
}
#: Kinds that need the server's module, and have no archive.
OF_THE_MODULE = {
    "redisbloom": {"layout": "redisbloom"},
    "redisbloom, ring": {"layout": "redisbloom", "retention": "ring", "slices": 3, "period": "1d"},
}
ALL_KINDS = KINDS | OF_THE_MODULE
#: Kinds whose longest tests are slow: what they have of their own, shorter tests try.
SLOW_KINDS = ALL_KINDS.keys() - {"blocked", "counting", "redisbloom"}


def on_servers(kinds: Iterable[str]) -> list:
    """Cases for the fixture ``server``: of each kind the server that has the module, or all others, slow but one."""
    others = [each if each == DEFAULT else pytest.param(each, marks=pytest.mark.slow) for each in SERVERS]
    cases = [(kind, each) for kind in kinds for each in ([BLOOM] if kind in OF_THE_MODULE else others)]
    return [
        pytest.param(kind, *getattr(each, "values", [each]), marks=getattr(each, "marks", ())) for kind, each in cases
    ]


def slow_kinds(cases: Iterable) -> list:
    """Of cases of kinds those of ``SLOW_KINDS`` are slow tests."""
    return [
        pytest.param(*each.values, marks=[*each.marks, pytest.mark.slow]) if each.values[0] in SLOW_KINDS else each
        for each in cases
    ]


def shards_of_kind(kind: str) -> tuple[int, ...]:
    """The numbers of shards, of those to be tried, that a filter may have: a rolling shard has few bitmaps a slice."""
    return SHARDS[kind.startswith("rolling") :]


def slow_but_last(cases: Sequence[tuple]) -> list:
    """Of a kind's cases all but the last are slow tests."""
    quick = () if cases[-1][0] in SLOW_KINDS else cases[-1:]
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


WITH_SHARDS = [case for kind in KINDS for case in slow_but_last([(kind, each) for each in shards_of_kind(kind)])]


@pytest.fixture
def client(server):
    """A client of that server."""
    with server.client() as client:
        yield client


@contextlib.contextmanager
def little_room(client, room: int):
    """Let the server take so many bytes more."""
    client.config_set("maxmemory", client.info("memory")["used_memory"] + room)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextlib.contextmanager
def interrupted(monkeypatch, module, name: str, when: Callable[..., bool]):
    """Let a process die at a call of a function with such arguments, and check that it does."""
    plain = getattr(module, name)

    def dying(*given, **more):
        if when(*given):
            raise KeyboardInterrupt
        return plain(*given, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, name, dying)
        yield


@pytest.fixture
def of_segments(make_filter, monkeypatch):
    """Return a function that makes a filter of so many shards with ``SEGMENTS`` bitmaps a slice."""

    def make(name: str, shards: int, archive=None, segments=SEGMENTS, redis=None, **settings) -> UriFilter:
        wanted = {"capacity": 20_000, "error_rate": 1e-3, "seed": 7} | settings
        limit = "MODULE_LIMIT" if wanted.get("layout") == sizing.REDISBLOOM else "SEGMENT_LIMIT"
        monkeypatch.setattr(sizing, limit, LIMITS[limit])
        monkeypatch.setattr(sizing, "ROWS", (segments,))
        monkeypatch.setattr(sizing, limit, size_first(Settings(**wanted | {"shards": segments})).segment_bytes)
        news = make_filter(name, shards=shards, archive=archive, redis=redis, **wanted)
        assert (news.config.shards, news.config.segments) == (shards, segments)
        return news

    return make


def bitmaps(news: UriFilter, client) -> dict[str, bytes]:
    """Return the segments of a filter by slice and number, of the whole filter."""
    found, of_the_module = {}, news.config.layout == sizing.REDISBLOOM
    for shard in range(news.config.shards):
        for slice_ in news.view(shard).slices:
            for number, key in enumerate(map(news._session.keys.shard(shard).slice, slice_.names)):
                bits = client.dump(key) if of_the_module else client.getrange(key, 0, -1)
                found[f"{slice_.name} {shard * slice_.segments + number}"] = bits
    return found


@pytest.mark.parametrize(("kind", "server"), slow_kinds(on_servers(ALL_KINDS)), indirect=["server"])
def test_one_stream_of_calls(client, of_segments, kind):
    """(S, G) = (1, 18), (3, 6), (18, 1): equal answers to all calls, and equal bytes of each segment."""
    numbers = shards_of_kind(kind)
    filters = [of_segments(f"news{shards}", shards, **ALL_KINDS[kind]) for shards in numbers]
    drawn = random.Random(kind)

    def same(method: str, *given, **more):
        answers = [getattr(news, method)(*given, **more) for news in filters]
        assert answers == [answers[0]] * len(numbers), method
        return answers[0]

    for step in range(8):
        some = [f"https://example.com/{drawn.randrange(4000)}" for _ in range(drawn.choice([1, 20, 700, 2500]))]
        new = same("insert_many", some)
        assert sum(new) <= len(set(some))
        same("contains_many", [*some, *(f"https://example.com/{n}" for n in range(5000, 5050))])
        same("remove" if kind == "counting" else "forget", some[:30])
        same("insert", some[0])
        if ("ring" in kind or kind.startswith("rolling")) and step % 2:
            for news in filters:
                news.rotate()
        elif "ring" in kind:
            same("ages", some[:100])
            same("insert_ages", some[50:150], max_age=2)
    found = [bitmaps(news, client) for news in filters]
    assert found == [found[0]] * len(numbers)
    told = [news.info() for news in filters]
    for name in ("forgotten", "segments", "segment_bytes", "over_capacity"):
        assert len({getattr(each, name) for each in told}) == 1, name
    counts = [each.inserted for each in told]  # with last-seen a rolling shard reckons its own from its fill
    assert max(counts) - min(counts) <= (max(numbers) if kind == "rolling, last-seen" else 0)
    for name, near in (("fill", 1e-9), ("error_rate_now", 0.2)):
        values = [getattr(each, name) for each in told]
        assert values == pytest.approx([values[0]] * len(numbers), rel=near), name


@pytest.mark.parametrize(("kind", "server"), on_servers(["blocked", "redisbloom"]), indirect=["server"])
@pytest.mark.parametrize("command", ["insert", "contains", "forget"])
def test_segments_that_are_not_named(client, of_segments, command, kind):
    """BADARG, with nothing done: a segment of an item is before the named ones, behind or between them; their order."""
    news = of_segments("news", 1, capacity=1000, **ALL_KINDS[kind])
    keys, view = news._session.keys.shard(0), news.view(0)
    of_segment = {shards_of([digest], SEGMENTS)[0]: digest for digest in (md5(b"%d" % n) for n in range(1000))}
    digests = [of_segment[segment] for segment in (3, 4, 7)]

    def call(segments, some=digests):
        made = calls.items(command, news.config, keys, view, "-", some)
        first = [key for key in made.keys if "today" not in key]
        return replace(made, keys=(*first, *(keys.slice(f"today.{segment}") for segment in segments)))

    client.script_load(call([3]).script.source)
    before = dumped(client)
    wrong = [(4, 7), (3, 4), (3, 7), (3, 7, 8), (4, 3, 7), (3, 3, 4, 7), (3, 4, 7, 18), (3, 4, 5, 6)]
    for segments in wrong:
        with pytest.raises(ResponseError, match="^BADARG "):
            client.execute_command(*call(segments).command())
    assert dumped(client) == before
    answers = [client.execute_command(*call(some).command()) for some in [(3, 4, 7), range(3, 8), (1, 3, 4, 7, 17)]]
    assert answers == [[0] * 3, *[[int(command == "insert")] * 3] * 2]
    assert client.execute_command(*call([4], digests[1:2]).command()) == [int(command == "insert")]


@pytest.mark.parametrize("command", ["insert", "contains", "forget"])
def test_an_old_list_of_slices(client, of_segments, command):
    """STALE: a slice that is there has no key, or a key is of a slice that is not."""
    news = of_segments("news", 1, **KINDS["ring"])
    keys, digests = news._session.keys.shard(0), [md5(b"%d" % n) for n in range(20)]
    old = news.view(0)
    news.rotate()
    now = news.view(0)
    made = calls.items(command, news.config, keys, now, "-", digests)
    first = [key for key in made.keys if "today" not in key and "history" not in key]
    client.script_load(made.script.source)
    before = dumped(client)
    for names in (["today"], ["history_1"], ["today", "history_1"], ["history_1", "today", "history_2"], []):
        given = (*first, *(keys.slice(f"{name}.1") for name in names))
        with pytest.raises(ResponseError, match="^STALE epoch 1, .*, live slices history_1:"):
            client.execute_command(*replace(made, keys=given).command())
    stale = calls.items(command, news.config, keys, old, "-", digests)
    with pytest.raises(ResponseError, match="^STALE "):
        client.execute_command(*stale.command())
    assert dumped(client) == before
    assert client.execute_command(*made.command()) == [0] * 20


@pytest.mark.parametrize(("kind", "server"), on_servers(["blocked", "redisbloom"]), indirect=["server"])
def test_claims(server, of_segments, kind):
    """What is in flight, committed, released and rejected is told alike."""
    items = [f"https://example.com/{number}" for number in range(1200)]
    told = []
    for shards in SHARDS:
        news = of_segments(f"news{shards}", shards, **ALL_KINDS[kind])
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


@pytest.fixture
def of_growing_rows(of_segments):
    """Return a function that makes a growing filter of small bitmaps: further slices have more of them.

    Of so many shards, the first slice has four bitmaps, and further ones 8 and 16.
    """

    def make(shards: int = 1, archive: str | None = None, **settings) -> UriFilter:
        wanted = {"capacity": 8_000, "error_rate": 1e-4, "retention": "growing"} | settings
        return of_segments("news", shards, archive, segments=4, **wanted)

    return make


def rows_of(news: UriFilter) -> list[int]:
    return [each.segments for each in news.view(0).slices]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_growing_rows(server, client, of_growing_rows, folder, tmp_path, shards):
    """A slice of a growing filter has twice the bitmaps of the one before; no answer and no copy suffers by that."""
    news = of_growing_rows(shards, archive=folder)
    items = [f"https://example.com/{number}" for number in range(70_000)]
    assert sum(news.insert_many(items)) >= len(items) - 25
    assert not any(news.insert_many(items))
    rows = rows_of(news)
    assert [*dict.fromkeys(rows)] == [4 // shards, 16 // shards]
    assert sum(news.contains_many(f"https://example.org/{number}" for number in range(50_000))) <= 25
    news.forget(items[:10])
    news.checkpoint()
    file, some = tmp_path / "news.urifilter", random.Random(7).sample(items, 2_000)
    export_to(folder, "news", file)
    with contextlib.closing(ExportedFilter(file)) as exported:
        assert exported.ages([*some, items[0]]) == news.ages([*some, items[0]])
    before = bitmaps(news, client)
    for slice_ in news.view(0).slices:  # one bitmap of each slice is lost
        client.delete(news._session.keys.shard(0).slice(slice_.names[-1]))
    assert opened(server, news).restored.shards == 1
    assert bitmaps(news, client) == before
    client.flushall()
    assert opened(server, news).restored.shards == shards
    assert bitmaps(news, client) == before
    assert sum(news.insert_many(items)) == 10
    more = [f"https://example.com/more/{number}" for number in range(40_000)]
    assert sum(news.insert_many(more)) >= len(more) - 25
    assert len(rows_of(news)) > len(rows)


@pytest.mark.parametrize("server", [BLOOM], indirect=True)
@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_growing_rows_of_the_module(server, of_growing_rows, shards):
    """Likewise with layout redisbloom."""
    news = of_growing_rows(shards, layout="redisbloom", error_rate=1e-2)
    items = [f"https://example.com/{number}" for number in range(70_000)]
    assert sum(news.insert_many(items)) >= 0.99 * len(items)
    assert not any(news.insert_many(items))
    rows = rows_of(news)
    assert [*dict.fromkeys(rows)] == [4 // shards, 16 // shards]
    assert sum(news.contains_many(f"https://example.org/{number}" for number in range(50_000))) <= 500
    assert 0 < news.info().error_rate_now <= 1e-2
    assert all(news.forget(items[::700]))
    assert [number for number, new in enumerate(news.insert_many(items)) if new] == [*range(0, 70_000, 700)]


def test_union_of_growing_rows(of_growing_rows, make_filter):
    """Each slice goes into the target's, also where the other slices have fewer bitmaps."""
    target = of_growing_rows()
    source = make_filter("source", **target.settings)
    items = [f"https://example.com/{number}" for number in range(30_000)]
    source.insert_many(items)
    assert len(set(rows_of(source))) > 1
    target.union("source", over_capacity=True)
    assert all(target.contains_many(items))


def test_a_drop_after_a_row_that_was_never_used(client, of_growing_rows):
    """A client died before the next slice of sixteen bitmaps was whole: none of them stays."""
    news = of_growing_rows()
    news.insert("a")
    for number in range(1, 16):
        client.set(news._session.keys.shard(0).slice(f"today_next.{number}"), b"\0")
    news.drop()
    assert client.keys() == []


@pytest.mark.slow
def test_growing_rows_without_memory(client, of_growing_rows):
    """A server that has no room for a whole row gets back what was made of it, and answers what it can."""
    news = of_growing_rows(capacity=400_000)
    items = [f"https://example.com/{number}" for number in range(390_000)]
    news.insert_many(items)
    more = [f"https://example.com/more/{number}" for number in range(40_000)]
    with little_room(client, 2 * news.config.bytes):
        with pytest.raises(ServerUnavailable, match="memory") as caught:
            news.insert_many(more)
        assert client.keys("*today_next*") == []
        assert all(news.contains_many(items[:1000]))
    assert sum(news.insert_many(more, retry=caught.value)) >= len(more) - 25
    assert not any(news.insert_many([*items[:1000], *more]))
    assert rows_of(news) == [4, 16]


@pytest.mark.parametrize(
    ("kind", "server"), on_servers(["blocked", "ring", "redisbloom", "redisbloom, ring"]), indirect=["server"]
)
def test_a_lost_segment(client, of_segments, kind):
    """SliceLost names the segment, to the calls whose items it has; the others are answered."""
    news, is_ring = of_segments("news", 1, **ALL_KINDS[kind]), "ring" in kind
    items = [f"https://example.com/{number}" for number in range(500)]
    if is_ring:
        assert all(news.insert_many(items))
        news.rotate()
    lost = news._session.keys.shard(0).slice("history_1.4" if is_ring else "today.4")
    client.unlink(lost)
    of_it = [number * 18 >> 12 == 4 for number in shards_of(news._session.digester(items), sizing.SHARDS_LIMIT)]
    assert 0 < sum(of_it) < 100
    for item, is_lost in zip(items[:100], of_it, strict=False):
        if is_lost:
            with pytest.raises(SliceLost, match=lost.replace("{", r"\{")):
                news.insert(item)
        else:
            assert news.insert(item) != is_ring
    with pytest.raises(SliceLost, match=lost.replace("{", r"\{")):
        news.info()
    if is_ring:
        with pytest.raises(SliceLost, match=lost.replace("{", r"\{")):
            news.rotate()
        assert news.epoch() == 1
    news.drop()
    assert client.keys("*") == []


@pytest.mark.parametrize(("kind", "server"), on_servers(["ring", "redisbloom, ring"]), indirect=["server"])
def test_a_drop_frees_little_at_once(client, of_segments, kind):
    """A script frees four bitmaps at most, or one filter of the module."""
    news = of_segments("news", 1, **ALL_KINDS[kind])
    news.rotate()
    before = client.config_get("slowlog-*")
    client.config_set("slowlog-max-len", 1000)
    client.config_set("slowlog-log-slower-than", 0)
    try:
        news.drop()
    finally:
        client.config_set("slowlog-log-slower-than", before["slowlog-log-slower-than"])
    freed = [each["command"].split()[1:] for each in client.slowlog_get(1000) if b"UNLINK" in each["command"][:6]]
    assert client.keys("*") == []
    client.config_set("slowlog-max-len", before["slowlog-max-len"])
    slices = [sum(b":today" in key or b":history" in key for key in keys) for keys in freed]
    assert sum(slices) >= 2 * SEGMENTS
    assert max(slices) == (1 if kind in OF_THE_MODULE else 4)


@pytest.mark.parametrize("server", [BLOOM], indirect=True)
def test_a_segment_that_is_full(client, of_segments):
    """The module fails in the middle of a list: each item is new once, at once or at the repeat."""
    news = of_segments("news", 1, layout="redisbloom", error_rate=1e-9)
    items = [f"https://example.com/{number}" for number in range(2000)]
    leave_room(client, news, 20, "today.4")
    with pytest.raises(UriFilterError, match=r"MODULE .*non scaling filter is full") as failed:
        news.insert_many(items)
    told = failed.value.answers
    assert news.contains_many(items) == [each is True for each in told]
    assert 0 < told.count(True) < len(items)
    assert news.info().inserted == told.count(True)
    make_room(client, news, "today.4")
    assert news.insert_many(items, retry=failed.value) == [True] * len(items)
    of_it = [number * SEGMENTS >> 12 == 4 for number in shards_of(news._session.digester(items), sizing.SHARDS_LIMIT)]
    again = zip(news.insert_many(items), of_it, told, strict=True)
    assert all(new == (lost and before is True) for new, lost, before in again)  # make_room has forgotten these


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


def opened(server, news: UriFilter) -> UriFilter:
    """Return another client of the same filter, which is restored if it has to be; it is closed already."""
    with UriFilter.open(news.name, redis=server.url, archive=news.config.archive) as found:
        return found


def row(news: UriFilter, name: str) -> list[str]:
    """Return the keys of a slice's bitmaps in the first shard."""
    return [news._session.keys.shard(0).slice(each) for each in replace(news.config.today, name=name).names]


@pytest.mark.parametrize(("kind", "shards"), WITH_SHARDS)
def test_a_restore_into_an_empty_server(server, client, of_segments, folder, kind, shards):
    """Every bitmap is as it was, and so is every answer."""
    news = of_segments("news", shards, archive=folder, **KINDS[kind])
    items = [f"https://example.com/{number}" for number in range(900)]
    assert all(news.insert_many(items[:500]))
    if kind.startswith(("ring", "rolling")):
        news.rotate()
    assert all(news.insert_many(items[500:800]))
    news.forget(items[:10])
    assert news.checkpoint().shards == shards
    assert news.checkpoint().shards == 0
    before, ages = bitmaps(news, client), news.ages(items)
    client.flushall()
    assert opened(server, news).restored.shards == shards
    assert bitmaps(news, client) == before
    assert news.ages(items) == ages
    assert sum(news.insert_many(items)) == 110


@pytest.mark.parametrize("kind", ["blocked", "counting", "ring", "ring, write all", "growing"])
def test_a_restore_of_one_segment(server, client, of_segments, folder, kind):
    """One bitmap is lost, in each slice in turn: it comes back, and no bit of its sisters goes."""
    more = {"retention": "growing", "capacity": 40_000, "error_rate": 1e-5} if kind == "growing" else KINDS[kind]
    news = of_segments("news", 3 if kind == "growing" else 1, archive=folder, **more)
    items = [f"https://example.com/{number}" for number in range(1000)]
    new = news.insert_many(items[:400])
    if kind.startswith("ring"):
        news.rotate()
    elif kind == "growing":
        assert news.insert_many([f"https://example.com/more/{number}" for number in range(45_000)])
        assert len(news.view(0).slices) > 1
    new += news.insert_many(items[400:800])
    news.checkpoint()
    for number, slice_ in enumerate(news.view(0).slices):
        lost = row(news, slice_.name)[3]
        new += news.insert_many(items[800 + 50 * number : 850 + 50 * number])  # the checkpoint has none of these
        before = {key: client.getrange(key, 0, -1) for each in news.view(0).slices for key in row(news, each.name)}
        client.unlink(lost)
        assert opened(server, news).restored.shards == 1
        after = {key: client.getrange(key, 0, -1) for key in before}
        assert all(after[key] == bits for key, bits in before.items() if key != lost)
        back, was = after[lost], before[lost]
        if kind == "counting":  # a hexadecimal digit is a counter
            assert all(now <= then for now, then in zip(back.hex(), was.hex(), strict=True))
        else:
            assert all(now & ~then == 0 for now, then in zip(back, was, strict=True))
    assert all(new)
    assert all(news.contains_many(items[:800]))


@pytest.fixture
def moved(server, folder, tmp_path):
    """Return a function that drops a filter, and opens, meanwhile, what was imported of it with so many shards."""

    @contextlib.contextmanager
    def move(news: UriFilter, shards: int):
        file, there = tmp_path / "news.urifilter", (tmp_path / "there").as_uri()
        news.checkpoint()
        export_to(folder, news.name, file)
        news.drop()
        config, again = (import_from(there, file, shards)[1] for _ in range(2))
        assert (again.uid, again.shards) == (config.uid, shards)
        assert config.uid != news.config.uid
        with UriFilter.open(news.name, redis=server.url, archive=there) as found:
            yield found
            found.drop()

    return move


MOVES = [(1, 3), (18, 1), (3, 18), (3, 2)]
MOVES_OF_KIND = [
    case
    for kind in KINDS
    for case in slow_but_last([(kind, *move) for move in ([(18, 3), (3, 18)] if "rolling" in kind else MOVES)])
]


@pytest.mark.parametrize(("kind", "before", "after"), MOVES_OF_KIND)
def test_another_number_of_shards(client, of_segments, folder, moved, kind, before, after):
    """A filter that moves is as it was, in other shards: bits, ages, what is forgotten and in flight, counts."""
    news = of_segments("news", before, archive=folder, **KINDS[kind])
    items = [f"https://example.com/{number}" for number in range(1000)]
    assert all(news.insert_many(items[:500]))
    if kind.startswith(("ring", "rolling")):
        news.rotate()
    assert all(news.insert_many(items[500:800]))
    news.forget(items[:10])
    if kind != "counting":
        mine = news.claims(lease=600, holder=HOLDER, beats=False)
        assert set(mine.claim_many(items[800:850])) == {True}
        mine.reject(items[800:805], "no page")
    ages, told, bits = news.ages(items), news.info(), bitmaps(news, client)
    with moved(news, after) as found:
        assert (found.config.shards, found.config.segments) == (after, SEGMENTS)
        assert bitmaps(found, client) == bits
        assert found.ages(items) == ages
        now = found.info()
        for name in ("inserted", "forgotten", "epoch", "capacity"):
            assert getattr(now, name) == getattr(told, name), name
        if told.claims is not None:
            assert now.claims.in_flight == 45
            assert (now.claims.rejected, now.claims.dead_letters) == (5, 5)
        assert sorted(each.item for each in found.dead_letters()) == (items[800:805] if kind != "counting" else [])
        if kind != "counting":
            mine = found.claims(lease=600, holder=HOLDER, beats=False)
            assert mine.commit(items[805:850]) == [True] * 45
        assert sum(found.insert_many(items[:800])) == 10
        if kind.startswith(("ring", "rolling")):
            found.rotate()
        assert found.checkpoint().shards == after


@pytest.mark.parametrize(
    ("segments", "before", "after"), slow_but_last([(4, 1, 2), (4, 4, 1), (18, 18, 3), (18, 3, 6)])
)
def test_a_growing_filter_moves_and_grows_on(client, of_segments, folder, moved, segments, before, after):
    """In another number of shards each row is cut anew, and the next ones are as they would have been."""
    size = {4: {"capacity": 8_000, "error_rate": 1e-4}, 18: {"capacity": 40_000, "error_rate": 1e-5}}[segments]
    count = {4: 40_000, 18: 20_000}[segments]  # in several slices, and in one
    news = of_segments("news", before, archive=folder, segments=segments, retention="growing", **size)
    items = [f"https://example.com/{number}" for number in range(count)]
    news.insert_many(items)
    ages, rows, bits, told = news.ages(items), rows_of(news), bitmaps(news, client), news.info()
    assert (len(rows) > 1) == (segments == 4)
    with moved(news, after) as found:
        assert bitmaps(found, client) == bits
        assert found.ages(items) == ages
        assert rows_of(found) == [each * before // after for each in rows]
        now = found.info()
        assert (now.inserted, now.epoch) == (told.inserted, told.epoch)
        assert not any(found.insert_many(items))
        more = [f"https://example.com/more/{number}" for number in range(60_000)]
        assert sum(found.insert_many(more)) >= len(more) - 250_000 * size["error_rate"]
        assert len(rows_of(found)) > len(rows)
        assert found.info().error_rate_now <= size["error_rate"]


@pytest.fixture
def refused(folder, tmp_path):
    """Return a function that checks that so many shards are refused for a filter, and the archive gets nothing."""
    file, there = tmp_path / "news.urifilter", tmp_path / "there"

    def check(news: UriFilter, shards: int, error: type[Exception], words: str) -> None:
        news.checkpoint()
        export_to(folder, "news", file)
        with pytest.raises(error, match=words):
            import_from(there.as_uri(), file, shards)
        assert not there.exists()

    return check


def test_wrong_numbers_of_shards(server, of_segments, folder, refused):
    """They are refused with the possible ones."""
    news = of_segments("news", 3, archive=folder)
    news.insert("https://example.com/")
    for wrong in (0, -1, 4, 5, 36, 4096):
        refused(news, wrong, ValueError, f"18 bitmaps a slice can be in 1, 2, 3, 6, 9, 18 shards, and not {wrong} ")


def test_shards_in_several_epochs(server, of_segments, folder, refused, monkeypatch):
    """While one shard has turned, and the others not, the file has no one state: it is refused, with what to do."""
    news = of_segments("news", 3, archive=folder, **KINDS["ring"])
    news.insert_many([f"https://example.com/{number}" for number in range(100)])
    with interrupted(monkeypatch, rotation, "_turn_shard", lambda *given: given[1] == 2):
        news.rotate()
    refused(news, 1, ArchiveError, r"is in epoch 1, idle, and shard 0 in epoch 0, idle: wait until all")


def test_counters_of_a_restorer_that_dies(server, client, of_segments, folder, monkeypatch):
    """One bitmap of counters is lost and made anew, and the restorer dies: the next one does not keep it empty."""
    news = of_segments("news", 1, archive=folder, layout="counting")
    items = [f"https://example.com/{number}" for number in range(800)]
    news.insert_many(items[:500])
    news.checkpoint()
    news.insert_many(items[500:])
    lost, before = row(news, "today")[3], bitmaps(news, client)
    client.unlink(lost)
    with interrupted(monkeypatch, calls, "refill", lambda *given: given[0] == "piece"):
        opened(server, news)
    assert client.strlen(lost) == len(before["today 3"])
    assert client.bitcount(lost) == 0
    opened(server, news)
    after = bitmaps(news, client)
    del before["today 3"]
    assert after.pop("today 3").strip(b"\0")
    assert after == before
    assert all(news.contains_many(items[:500]))


def test_counters_after_calls_without_an_id(server, client, of_segments, folder):
    """They leave no record, and yet the bitmaps that Redis has keep what came after the checkpoint."""
    news = of_segments("news", 1, archive=folder, layout="counting")
    news.insert_many(range(500))
    news.checkpoint()
    digests = news._session.digester(["a"])
    made = calls.items("insert", news.config, news._session.keys.shard(0), news.view(0), "-", digests)
    client.script_load(made.script.source)
    assert client.execute_command(*made.command()) == [0]
    client.unlink(row(news, "today")[(shards_of(digests, SEGMENTS)[0] + 1) % SEGMENTS])
    opened(server, news)
    assert "a" in news


@pytest.mark.parametrize(("kind", "server"), on_servers(["blocked", "redisbloom"]), indirect=["server"])
def test_a_creator_that_dies(client, of_segments, monkeypatch, kind):
    """The next create goes on at the segment where another process died."""
    with interrupted(monkeypatch, calls, "create", lambda *given: given[0] == "allocate" and given[-1] == ["7"]):
        of_segments("news", 1, **ALL_KINDS[kind])
    meta, made = "urifilter:{news:0}:meta", "urifilter:{news:0}:today.7"
    assert (client.hget(meta, "phase"), client.hget(meta, "made")) == (b"creating", b"7")
    client.set(made, b"x")  # of an earlier filter
    with pytest.raises(SliceLost, match=r"today\.7 is of an earlier filter"):
        of_segments("news", 1, **ALL_KINDS[kind])
    assert (client.hget(meta, "made"), client.get(made)) == (b"7", b"x")
    client.delete(made)
    news = of_segments("news", 1, **ALL_KINDS[kind])
    assert all(news.insert_many([f"https://example.com/{number}" for number in range(500)]))
    assert (client.hget(meta, "phase"), client.hget(meta, "made")) == (b"idle", None)
    news.drop()
    client.set("urifilter:{news:0}:today.5", b"x")
    with pytest.raises(SliceLost, match=r"today\.5: drop the filter first"):
        of_segments("news", 1, **ALL_KINDS[kind])


@pytest.mark.parametrize("missing", [0, 7, SEGMENTS - 1])
def test_a_turn_before_its_row_is_whole(client, of_segments, missing):
    """It is refused, and nothing is renamed; the next turn makes what is missing."""
    news = of_segments("news", 1, **KINDS["ring"])
    assert news.insert("https://example.com/")
    (state,) = news._run(turn.read_states(news._session))
    *made, last = turn.Turn(0, state, "0123456789abcdef", news.config.today).calls(news._session)
    client.script_load(last.script.source)
    for call in made[:missing] + made[missing + 1 :]:
        assert client.execute_command(*call.command()) == 1
    before = dumped(client)
    with pytest.raises(ResponseError, match="^BADPHASE the next bitmap is not allocated"):
        client.execute_command(*last.command())
    assert dumped(client) == before
    assert news.rotate().epoch == 1
    assert news.ages(["https://example.com/"]) == [2]


@pytest.mark.parametrize(("kind", "server"), on_servers(["ring", "redisbloom, ring"]), indirect=["server"])
def test_no_memory_for_a_row(client, of_segments, kind):
    """A turn that finds no memory for its last segments frees the first, and can be made later."""
    news = of_segments("news", 1, capacity=2_000_000, **ALL_KINDS[kind])
    assert news.insert("https://example.com/")
    with little_room(client, news.config.bytes * SEGMENTS // 2):
        with pytest.raises(ServerUnavailable, match="memory"):
            news.rotate()
        assert client.keys("*today_next*") == []
        assert news.insert("https://example.com/2")
    assert news.rotate().epoch == 1
    assert news.ages(["https://example.com/", "https://example.com/2"]) == [2, 2]


def test_no_memory_for_a_row_that_inserts_make(server, client, of_segments, monkeypatch):
    """A turn that rests while the memory becomes full frees what it made: else no client could insert any more."""
    monkeypatch.setattr(auto_rotate, "A_CALL", 0)
    news = of_segments("news", 1, capacity=2_000_000, **KINDS["ring"])
    assert news.insert("https://example.com/")
    make_late(server, seconds=90_000)
    with UriFilter.open("news", redis=server.url) as late, little_room(client, news.config.bytes * SEGMENTS // 2):
        refused = 0
        for number in range(4 * SEGMENTS):
            try:
                assert late.insert(f"https://example.com/{number}")
            except ServerFull:
                refused += 1
        assert refused <= 1
        assert client.keys("*today_next*") == []


@pytest.mark.parametrize(("kind", "server"), on_servers(["ring", "redisbloom, ring"]), indirect=["server"])
def test_what_a_ring_loses(client, of_segments, kind):
    """More than four bitmaps are not freed by the turn: they expire one after the other, and take nothing along."""
    news = of_segments("news", 1, **ALL_KINDS[kind])
    items = [f"https://example.com/{number}" for number in range(200)]
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


@pytest.mark.parametrize("segments", [2, 4, 5])
def test_a_ring_loses_few(server, of_segments, segments):
    """Up to four bitmaps are freed by the turn itself."""
    news = of_segments("news", 1, segments=segments, **KINDS["ring"])
    for day in range(5):
        assert news.insert(day)
        news.rotate()
    assert news.ages(range(5)) == [0, 0, 0, 3, 2]
    assert (server.ask("keys", "*gone*") != []) == (segments > 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "rolling"])
def test_memory_while_all_shards_turn(make_server, of_segments, folder, kind):
    """The row of one shard more takes memory, as ``plan`` says: a shard waits until what was let go is free."""
    server = make_server()
    news = of_segments("news", 3, capacity=2_000_000, archive=folder, redis=server.url, **KINDS[kind])
    row = news.config.today.whole.size
    with server.client() as client:
        for day in range(4):
            assert news.insert(day)
            begun = time.monotonic()
            news.rotate()
            used = client.info("memory")["used_memory"]
        assert time.monotonic() - begun > 2 * 0.1 * news.config.today.segments
        wait_until(lambda: client.keys("*gone*") == [], "the freed bitmaps")
        most = client.info("memory")["used_memory_peak"]
        assert used <= most <= client.info("memory")["used_memory"] + 1.9 * row


def test_a_shard_that_is_being_rotated(server, of_segments, folder, refused):
    """Its closed slice is in no bitmap yet: the file is refused for another number of shards, with what to do."""
    news = of_segments("news", 3, archive=folder, **KINDS["rolling"])
    news.insert_many(range(100))
    (state,) = news._run(turn.read_states(news._session, [0]))
    for call in turn.Turn(0, state, "01", news.config.today).calls(news._session):
        news._run(ask(news._session, call))
    refused(news, 9, ArchiveError, r"shard 0 of 'news' is in epoch 1, rotating, and shard 0 in .* wait until")
