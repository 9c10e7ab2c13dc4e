"""The answers, arguments and manners that a Python user expects of the clients."""

from __future__ import annotations

import array
import asyncio
import pickle

import numpy as np
import pytest
import redis
import redis.asyncio
import valkey
from support.proxy import Fault, Proxy, first

from urifilter_redis import AnswerLost, AsyncUriFilter, BadItem, ServerUnavailable, Timeouts, UriFilter
from urifilter_redis.archive.export import ExportedFilter, export
from urifilter_redis.engine.driver import drive
from urifilter_redis.sdk import FilterAPIClient

QUICK = Timeouts(connect=10, reply=10, total=0.6)


class Page:
    """An object of a crawler's, which no pickle takes."""

    def __init__(self, url):
        self.url, self.parse = url, lambda: None


def url_of(page):
    return page.url


def test_streams_with_a_key(any_server):
    """``iter_unique`` yields the objects; the rest that it inserted is forgotten, though the filter is closed."""
    pages = [Page(str(n)) for n in range(10)]
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news:
        stream = news.iter_unique(pages, key=url_of)
        assert [next(stream), next(stream)] == pages[:2]
    stream.close()

    async def session():
        async with AsyncUriFilter.open("news", redis=any_server.url) as again:
            stream = again.iter_unique(pages, key=url_of)
            assert await anext(stream) is pages[2]
        await stream.aclose()

    asyncio.run(session())
    with UriFilter.open("news", redis=any_server.url) as news:
        assert news.contains_many(pages, key=url_of) == [True] * 3 + [False] * 7


def test_a_stream_that_ends_while_its_objects_change(any_server):
    """The rest is forgotten by its digests: not by a key that answers otherwise, or only once."""
    pages = [{"url": str(n)} for n in range(4)]
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news:
        for _ in news.iter_unique(pages, key=lambda page: page.pop("url")):
            break
        assert news.contains_many("0123"[n] for n in range(4)) == [True, False, False, False]


@pytest.mark.slow
def test_a_stream_that_cannot_forget(any_server):
    """If the rest of an ended stream cannot be forgotten, ``unresolved`` tells of it."""
    UriFilter.create("news", redis=any_server.url, capacity=1000).close()
    with Proxy(any_server.port) as proxy, UriFilter.open("news", redis=proxy.url, timeouts=QUICK) as news:
        stream = news.iter_unique(["a", "b", "c"])
        assert next(stream) == "a"
        proxy.plan = first(*[Fault.CUT_BEFORE] * 50)
        with pytest.raises(ServerUnavailable):
            stream.close()
        proxy.plan = first()
        (lost,) = news.unresolved
        assert news.forget(["b", "c"], retry=lost) == [True, True]
        assert news.unresolved == []
        assert news.contains_many("abc"[n] for n in range(3)) == [True, False, False]


def test_a_list_that_changes_meanwhile(any_server):
    """The answers are about the items as they were given."""

    async def session():
        async with AsyncUriFilter.create("news", redis=any_server.url, capacity=1000) as news:
            todo = ["a", "b"]

            async def other():
                todo[:] = ["c", "d", "e"]

            new, _ = await asyncio.gather(news.unique(todo), other())
            assert new == ["a", "b"]
            assert await news.contains_many(["a", "c"]) == [True, False]

    asyncio.run(session())


def test_an_error_about_objects_goes_through_pickle(any_server):
    """In place of an object that no pickle takes the error has its item; the answers keep the method's terms."""
    UriFilter.create("news", redis=any_server.url, capacity=1000, shards=4).close()
    with Proxy(any_server.port) as proxy, UriFilter.open("news", redis=proxy.url, timeouts=QUICK) as news:
        news.insert("the script is loaded now")
        proxy.plan = first(Fault.PASS, Fault.PASS, *[Fault.CUT_AFTER] * 50)
        with pytest.raises(AnswerLost) as lost:
            news.insert_many([Page(f"{n}") for n in range(50)], key=url_of)
    again = pickle.loads(pickle.dumps(lost.value))
    assert again.items == [f"{n}" for n in range(50)]
    assert again.answers == lost.value.answers
    assert set(again.answers) == {True, None}


def test_a_key_that_fails(any_server):
    """A key's exception comes out, and a bad item that it makes is named; nothing is inserted."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news:
        with pytest.raises(AttributeError):
            news.unique([Page("a"), "b"], key=url_of)
        with pytest.raises(BadItem) as bad:
            news.unique([Page("a"), Page(object())], key=url_of)
        assert bad.value.indices == [1]
        assert len(news) == 0


class Table:
    """A table of pandas: its elements are the names of its columns."""

    columns = ("url", "depth")

    def __iter__(self):
        return iter(self.columns)


def test_columns_of_libraries(any_server):
    """So does a column of Arrow and of pandas, in a stream too."""
    arrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news:
        assert news.unique(arrow.array(["a", "b"])) == ["a", "b"]
        assert news.unique(pandas.Series(["b", "c"])) == ["c"]
        assert list(news.iter_unique(arrow.chunked_array([["c", "d"], ["e"]]))) == ["d", "e"]


def test_a_lone_item_is_refused(any_server):
    """What is like one string is no list of items, in a stream neither."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news:
        for lone in (b"a", "a", bytearray(b"a"), memoryview(b"a"), array.array("B", b"a"), np.str_("a")):
            for method in (news.insert_many, lambda uris: list(news.iter_unique(uris))):
                with pytest.raises(TypeError, match=r"a list of items is wanted, not one item: \[b?'a'\]"):
                    method(lone)
        with pytest.raises(TypeError):
            news.unique(np.int64(7))
        with pytest.raises(TypeError, match="not a table: give one column"):
            news.unique(Table())
        assert len(news) == 0


@pytest.mark.parametrize("bad", [np.datetime64("2026-01-01"), np.complex64(1), np.array([1, 2]), np.float32("nan")])
def test_numpy_without_a_number(any_server, bad):
    """A date, a complex number, NaN or an array among the items is a bad item."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news, pytest.raises(BadItem):
        news.insert_many(["a", bad])


def test_length_and_truth(any_server):
    """``len`` counts the items that were answered new; a filter is true without asking the server."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000, shards=3, error_rate=1e-9) as news:
        assert (len(news), bool(news)) == (0, True)
        news.insert_many(["a", "b", "a"])
        assert len(news) == news.inserted() == 2
        with any_server.client() as admin:
            admin.config_resetstat()
            assert news
            told = admin.info("commandstats")
            assert not {*told} - {"cmdstat_config|resetstat", "cmdstat_config"}  # as Redis before 7 names it


def test_representation(any_server, service):
    """``repr`` says name, server, layout and retention; of a client of the service, its address."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000, retention="growing") as news:
        assert repr(news) == f"<UriFilter news on {any_server.url}: blocked, growing>"
        again = pickle.loads(pickle.dumps(news))
        assert repr(again) == repr(news)
    assert repr(news) == f"<UriFilter news on {any_server.url}: closed>"
    with FilterAPIClient(service.url, access_token="secret") as api:
        assert repr(api) == f"<FilterAPIClient of {service.url}>"
    assert repr(api) == f"<FilterAPIClient of {service.url}: closed>"


def test_closed(clients, any_server):
    """What the contract's suite does not ask of a closed filter says so, too; closing again is no error."""
    news = clients.create("news", redis=any_server.url, capacity=1000)
    news.close()
    news.close()
    asked = [news.drop, news.inserted, lambda: news.insert("a"), lambda: news.contains("a")]
    if not clients.awaited:
        asked += [lambda: "a" in news, lambda: len(news), lambda: list(news.iter_unique(["a"]))]
    for ask in asked:
        with pytest.raises(ValueError, match="filter 'news' is closed: open it again"):
            ask()
    assert clients.open(redis=any_server.url).inserted() == 0


def test_opening_may_be_awaited(any_server):
    """``async with`` opens without ``await``, and with it, also by a task."""

    async def session():
        async with AsyncUriFilter.create("news", redis=any_server.url, capacity=1000) as news:
            assert await news.insert("a")
        async with await AsyncUriFilter.open("news", redis=any_server.url) as again:
            assert not await again.insert("a")
        task = asyncio.create_task(AsyncUriFilter.open("news", redis=any_server.url))
        async with await task as third:
            assert not await third.insert("a")

    asyncio.run(session())


def test_clients_of_other_libraries():
    """Another library's client is refused in words that name the URL, without its password."""
    client = valkey.Valkey(host="cache", port=6380, db=2, password="secret")
    text = r"takes a URL or a redis.Redis and not valkey.client.Valkey: give .* redis='redis://cache:6380/2', with its"
    with pytest.raises(TypeError, match=text) as refused:
        UriFilter.open("news", redis=client)
    assert "secret" not in str(refused.value)
    secure = valkey.Valkey.from_url("rediss://cache:6380/2")
    with pytest.raises(TypeError, match="redis='rediss://cache:6380/2'$"):
        UriFilter.open("news", redis=secure)
    with pytest.raises(TypeError, match=r"not redis.asyncio.client.Redis: give .* redis='redis://localhost:6379/0'$"):
        UriFilter.open("news", redis=redis.asyncio.Redis())
    with pytest.raises(TypeError, match=r"a redis.asyncio.Redis and not redis.client.Redis: give the server's URL"):
        asyncio.run(AsyncUriFilter.open("news", redis=redis.Redis()))
    with pytest.raises(TypeError, match=r"takes a URL or a redis.Redis and not builtins.int$"):
        UriFilter.open("news", redis=6379)


def test_closed_file(tmp_path, archived_filter):
    """A closed exported filter says so, too."""
    news = archived_filter(capacity=1000)
    news.insert("a")
    news.checkpoint()
    drive(export(news._session.backend, "news", tmp_path / "news.urifilter", lambda *_: None))
    with ExportedFilter(tmp_path / "news.urifilter") as exported:
        assert exported.contains_many(["a", "b"]) == [True, False]
        assert repr(exported) == f"<ExportedFilter news in {tmp_path / 'news.urifilter'}: blocked, forever>"
    assert repr(exported).endswith(": closed>")
    for ask in (lambda: exported.ages(["a"]), exported.verify, exported.__enter__):
        with pytest.raises(ValueError, match="is closed: open it again"):
            ask()
