"""One awaited client in several event loops and processes: connections of its own in each, or a clear refusal."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
import redis.asyncio
from support import mongo
from support.forked import in_child

from urifilter_redis import AsyncUriFilter, FilterAPIError, Timeouts, UriFilter, UriFilterError
from urifilter_redis.sdk import AsyncFilterAPIClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

ITEMS = [f"u{i}" for i in range(300)]


def opened(server, **more):
    UriFilter.create("news", redis=server.url, capacity=100_000, error_rate=1e-9, shards=3).close()
    return asyncio.run(AsyncUriFilter.open("news", redis=server.url, **more))


def test_a_second_run(server):
    """Each ``asyncio.run`` gets its answers over connections of its own."""
    news = opened(server)
    for n in range(5):
        assert asyncio.run(news.insert_ages([f"{n}/a", f"{n}/b"])) == [0, 0]
        assert asyncio.run(news.unique([f"{n}/a", f"{n}/c"])) == [f"{n}/c"]
    asyncio.run(news.close())


def test_many_runs(service, any_server):
    """Each run ends with its connections: neither this process nor the server runs out of them."""
    news = opened(any_server)
    UriFilter.create("sdk", redis=any_server.url, capacity=10_000).close()
    api = AsyncFilterAPIClient(service.url)

    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))

    with any_server.client() as admin:
        clients, before = len(admin.client_list()), descriptors()
        for n in range(40):
            assert asyncio.run(news.insert(f"{n}")) is True
            assert asyncio.run(api.insert_ages("sdk", [f"{n}"])) == [0]
        assert descriptors() <= before
        assert len(admin.client_list()) <= clients + 2  # the service's own


def test_loops_in_turn(server):
    """A loop whose connections wait finds them again."""
    news = opened(server)
    loops = [asyncio.new_event_loop() for _ in range(3)]
    try:
        for n in range(9):
            assert loops[n % 3].run_until_complete(news.insert(f"{n}")) is True
            assert loops[(n + 1) % 3].run_until_complete(news.insert(f"{n}")) is False
        for loop in loops:
            loop.run_until_complete(news.close())
    finally:
        for loop in loops:
            loop.close()


@pytest.mark.skipif(mongo.kind() == "mongomock", reason="mongomock has no awaited client: set TEST_URIFILTER_MONGOECO")
def test_a_second_run_with_an_archive(any_server, mongodb):
    """The archive's connections are a loop's, too."""
    UriFilter.create("news", redis=any_server.url, capacity=1000, archive=mongodb).close()
    news = asyncio.run(AsyncUriFilter.open("news", redis=any_server.url, archive=mongodb))
    for n in range(3):
        assert asyncio.run(news.insert(f"{n}")) is True
        assert asyncio.run(news.checkpoint()).number == n + 1
    asyncio.run(news.close())


def test_a_client_of_another_loop(any_server):
    """A client that was given belongs to one loop: elsewhere nothing is sent, and the error says what to do."""
    UriFilter.create("news", redis=any_server.url, capacity=1000).close()
    client = redis.asyncio.Redis.from_url(any_server.url)

    async def first():
        news = await AsyncUriFilter.open("news", redis=client)
        assert await news.insert("a") is True
        await client.aclose()
        return news

    news = asyncio.run(first())
    with any_server.client() as admin:
        admin.config_resetstat()
        with pytest.raises(UriFilterError, match="belongs to another event loop or process: open the filter anew"):
            asyncio.run(news.insert("b"))
        assert "cmdstat_evalsha" not in admin.info("commandstats")
    assert news.unresolved == []


def test_a_forked_child_with_a_loop_of_its_own(server):
    """Parent and child ask at the same time, each over its own connections: each item is new to one of them."""
    news = opened(server)

    async def ask(items):
        answers = await asyncio.gather(*(news.insert(item) for item in items))
        await news.close()
        return [item for item, new in zip(items, answers, strict=True) if new]

    async def parent():
        assert await news.insert_ages(["opened"]) == [0]
        theirs = asyncio.get_running_loop().run_in_executor(None, in_child, lambda: asyncio.run(ask(ITEMS[::-1])))
        ours = [item for item in ITEMS if await news.insert(item)]
        return ours, await theirs

    ours, theirs = asyncio.run(parent())
    assert sorted([*ours, *theirs]) == sorted(ITEMS)


async def refused_in_child(ask) -> str:
    """Fork in the middle of a loop; return the error that ``ask`` raises in the child."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            await ask()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)  # noqa: ASYNC222 - it has ended
    return said


def test_a_forked_child_in_its_parents_loop(any_server):
    """It is refused before anything is sent, and the parent goes on."""
    news = opened(any_server)

    async def parent():
        assert await news.insert("a") is True
        said = await refused_in_child(lambda: news.insert("b"))
        assert said.startswith("UriFilterError: no event loop of asyncio runs here")
        assert [await news.insert(item) for item in ("a", "b", "c")] == [False, True, True]
        await news.close()

    asyncio.run(parent())


def test_the_sdk(service, any_server):
    """The SDK's awaited client likewise: a second run, and a child in its parent's loop."""
    UriFilter.create("sdk", redis=any_server.url, capacity=1000).close()
    api = AsyncFilterAPIClient(service.url)
    for n in range(3):
        assert asyncio.run(api.insert_ages("sdk", [f"{n}"])) == [0]

    async def parent():
        assert await api.insert_ages("sdk", ["a"]) == [0]
        said = await refused_in_child(lambda: api.insert_ages("sdk", ["b"]))
        assert said.startswith(f"{FilterAPIError.__name__}: no event loop of asyncio runs here")
        assert await api.insert_ages("sdk", ["b"]) == [0]
        await api.close()

    asyncio.run(parent())


def test_a_stop_while_it_closes(server):
    """A process that is stopped in the middle of closing a client goes on without an error."""

    async def crawler():
        timeouts = Timeouts(connect=0.2, total=60)
        news = await AsyncUriFilter.create("news", redis=server.url, capacity=1000, timeouts=timeouts)
        assert await news.insert("a")
        closing = asyncio.create_task(news.close())
        while not closing.done():
            await asyncio.sleep(0)
            time.sleep(0.25)  # noqa: ASYNC251 - longer than a connection may take to close
        await closing

    asyncio.run(crawler())


@pytest.mark.quick
def test_no_loop_of_asyncio(any_server):
    """Under trio, say, whose loop is none of asyncio's: the error says so, and no RuntimeError of asyncio's comes."""
    opening = AsyncUriFilter.open("news", redis=any_server.url)
    with pytest.raises(UriFilterError, match="no event loop of asyncio runs here.*trio"):
        opening.send(None)


@pytest.mark.quick
@pytest.mark.parametrize(("begin", "more"), [("open", {}), ("create", {"capacity": 1000})])
def test_a_forgotten_await(any_server, begin, more):
    """What ``open`` and ``create`` return is no filter yet: the error says what is missing."""
    opening = getattr(AsyncUriFilter, begin)("news", redis=any_server.url, **more)
    with pytest.raises(AttributeError, match="has no 'insert': await it first"):
        opening.insert("a")
    assert not hasattr(opening, "unique")
    opening.close()
