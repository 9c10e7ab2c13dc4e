"""Connections: more callers than there are wait for a free one, in their order, and nobody is refused for that.

One awaited client in several event loops and processes has connections of its own in each, or is clearly refused.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import os
import socket
import struct
import threading
import time
from functools import partial

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from support import mongo
from support.forked import in_child
from support.interrupts import Interrupt
from support.proxy import Proxy
from support.servers import wait_until
from support.together import together

from urifilter_redis import AsyncUriFilter, FilterAPIError, ServerUnavailable, Timeouts, UriFilter, UriFilterError
from urifilter_redis.engine import driver
from urifilter_redis.sdk import AsyncFilterAPIClient
from urifilter_redis.sdk import Timeouts as SDKTimeouts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def made(server, at=None, **more):
    news = UriFilter.create("news", redis=at or server.url, capacity=100_000, error_rate=1e-9, shards=3, **more)
    assert news.insert("warm") is True  # the server has the script from now on
    return news


def connected(server, but=frozenset()) -> int:
    """Connections to the server, but for some, and for the one that asks."""
    return len(connections(server) - but)


def connections(server) -> set[str]:
    """The connections to the server, but for the one that asks; those of earlier tests may end meanwhile."""
    with server.client() as admin:
        return {each["id"] for each in admin.client_list()} - {str(admin.client_id())}


def library_of(clients):
    """Return the part of redis-py whose clients these filters take."""
    return redis.asyncio if clients.awaited else redis


def in_threads(count, work):
    """Run ``work(n)`` in so many threads at once; return what they returned or raised."""
    outcomes, all_there = {}, threading.Barrier(count)

    def run(n: int) -> None:
        all_there.wait()
        try:
            outcomes[n] = work(n)
        except Exception as error:  # compared by the test
            outcomes[n] = error

    together(partial(run, n) for n in range(count))
    return [outcomes[n] for n in range(count)]


def test_a_client_that_nobody_closes(any_server):
    """As the last reference to it ends, so do its connections: refusals that it got do not keep it alive."""
    before = connections(any_server)
    any_server.ask("script_flush")
    gc.disable()
    try:
        news = made(any_server)
        assert connected(any_server, before) == 1
        del news
        wait_until(lambda: connected(any_server, before) == 0, "a connection stays open")
    finally:
        gc.enable()


def test_500_tasks(server):
    """All get their answers, each item is new once, and there are never more connections than were allowed."""
    made(server).close()

    async def ask(news, n: int) -> int:
        return sum([await news.insert(f"{(n * 4 + i) % 1000}") for i in range(4)])

    async def run():
        before = connections(server)
        async with await AsyncUriFilter.open("news", redis=server.url, connections=20, coalesce=False) as news:
            new = await asyncio.gather(*(ask(news, n) for n in range(500)))
            return sum(new), connected(server, before), await news.inserted()

    assert asyncio.run(run()) == (1000, 20, 1001)


def test_300_threads(server):
    """So do threads of the blocking client."""
    with made(server, connections=20) as news:
        before = connections(server)
        answers = in_threads(300, lambda n: [news.insert(f"{(n * 4 + i) % 600}") for i in range(4)])
        assert sum(each is True for answer in answers for each in answer) == 600
        assert connected(server, before) <= 19  # one of them was there
        assert news.inserted() == 601


def test_as_many_as_there_are_by_default(server):
    """64, unless the URL says otherwise, which comes first, as for its timeouts."""
    made(server).close()

    async def most(url: str, **more) -> int:
        before = connections(server)
        async with await AsyncUriFilter.open("news", redis=url, coalesce=False, **more) as news:
            await asyncio.gather(*(news.contains("a") for _ in range(200)))
            return connected(server, before)

    assert asyncio.run(most(server.url)) == 64
    assert asyncio.run(most(f"{server.url}?max_connections=5")) == 5
    assert asyncio.run(most(f"{server.url}?max_connections=5", connections=9)) == 5


#: Options of ``open``, and what is none of their values.
IMPOSSIBLE = [
    *(("connections", each, "connections is a whole number from 1 up and not") for each in (0, -1, 1.5, True, "8")),
    *(("wait_replicas", each, "wait_replicas is a whole number from 0 up") for each in (-1, True, "1", 1.0, None)),
    *(("reads", each, "reads is master or replicas and not") for each in ("replica", "", None, True)),
]


@pytest.mark.parametrize("kind", [UriFilter, AsyncUriFilter])
@pytest.mark.parametrize(("option", "value", "told"), IMPOSSIBLE, ids=[f"{each[0]} {each[1]!r}" for each in IMPOSSIBLE])
def test_impossible_options(kind, option, value, told, any_server):
    """They are refused before anything is asked."""
    with pytest.raises(ValueError, match=told):
        opened = kind.open("news", redis=any_server.url, **{option: value})
        asyncio.run(opened)


def test_a_client_that_is_given(any_server):
    """Its pool's limit counts, over all filters that have it; ``connections=`` is refused."""
    made(any_server).close()
    with redis.Redis.from_url(any_server.url, max_connections=3) as client:
        both = [UriFilter.open("news", redis=client) for _ in range(2)]
        answers = in_threads(60, lambda n: both[n % 2].insert(f"{n % 30}"))
        assert sum(each is True for each in answers) == 30
        with pytest.raises(TypeError, match="a client that is given has its own max_connections"):
            UriFilter.open("news", redis=client, connections=4)

    async def run():
        async with redis.asyncio.Redis.from_url(any_server.url, max_connections=3) as client:
            both = [await AsyncUriFilter.open("news", redis=client) for _ in range(2)]
            return sum(await asyncio.gather(*(both[n % 2].insert(f"b{n % 30}") for n in range(60))))

    assert asyncio.run(run()) == 30


def test_a_client_that_is_given_has_its_connections_back(clients, any_server):
    """Between the filter's calls its owner has all connections of its pool."""
    made(any_server).close()
    client = library_of(clients).Redis.from_url(any_server.url, max_connections=1, protocol=2)
    news = clients.open("news", redis=client)
    for n in range(3):
        assert (news.insert(f"a{n}"), clients.wait(client.ping())) == (True, True)
    clients.wait(client.aclose() if clients.awaited else client.close())


@pytest.mark.quick
def test_a_connection_that_the_server_has_closed(clients, server, monkeypatch):
    """It is replaced before anything is sent over it, so no answer is lost for that; and no connection is left over."""
    sent, perform, awaited = [], driver.perform_step, driver.perform_step_async
    monkeypatch.setattr(driver, "perform_step", lambda step, sender: sent.append(step) or perform(step, sender))
    monkeypatch.setattr(driver, "perform_step_async", lambda step, sender: sent.append(step) or awaited(step, sender))
    made(server).close()
    news = clients.open("news", redis=server.url, connections=2)
    for n in range(3):
        server.ask("execute_command", "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(lambda: connected(server) == 0, "connections are still there")
        clients.let_pass(0.01)  # a loop hears of it
        sent.clear()
        assert (news.insert(f"a{n}"), len(sent), connected(server)) == (True, 1, 1)


def test_tasks_in_their_order(any_server):
    """Over one connection tasks are answered in the order in which they asked."""
    made(any_server).close()

    async def run():
        answered = []
        async with await AsyncUriFilter.open("news", redis=any_server.url, connections=1, coalesce=False) as news:

            async def ask(n: int) -> None:
                assert await news.insert(f"{n}") is True
                answered.append(n)

            await asyncio.gather(*(ask(n) for n in range(100)))
        return answered

    assert asyncio.run(run()) == list(range(100))


def test_cancelled_while_they_wait(server):
    """Others keep their places and there are as many connections as before; nothing of a cancelled task was sent."""
    made(server).close()

    async def run():
        news = await AsyncUriFilter.open("news", redis=server.url, connections=2, coalesce=False)
        answered = []

        async def ask(n: int) -> None:
            if await news.insert(f"{n}"):
                answered.append(n)

        tasks = [asyncio.create_task(ask(n)) for n in range(300)]
        await asyncio.sleep(0)  # all have asked, two have a connection
        for task in tasks[2::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [n for n, each in enumerate(outcomes) if each is not None] == list(range(2, 300, 2))
        assert sorted(answered) == [0, *range(1, 300, 2)]
        assert await news.ages([f"{n}" for n in range(2, 300, 2)]) == [0] * 149
        again = await asyncio.gather(*(news.insert(f"again {n}") for n in range(50)))
        await news.close()
        return again

    assert asyncio.run(run()) == [True] * 50


def test_cancelled_at_any_moment(server):
    """Whenever tasks are cancelled, no connection is lost for the others."""
    made(server).close()

    async def run():
        news = await AsyncUriFilter.open("news", redis=server.url, connections=2, coalesce=False)
        for round_ in range(30):
            tasks = [asyncio.create_task(news.insert(f"{round_}/{n}")) for n in range(8)]
            for turns in range(8):
                for _ in range(turns * round_ % 11):
                    await asyncio.sleep(0)
                tasks[turns].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        told = await asyncio.gather(*(news.insert(f"end {n}") for n in range(40)))
        await news.close()
        return told

    assert asyncio.run(run()) == [True] * 40


def test_cancelled_calls_of_the_sdk(service, any_server, caplog):
    """Whenever they are cancelled, no connection is lost for the others; what they have left ends with the client."""
    UriFilter.create("sdk", redis=any_server.url, capacity=10_000).close()

    async def run():
        async with AsyncFilterAPIClient(service.url, timeouts=SDKTimeouts(reply=10, total=10)) as api:
            for n in range(600):
                task = asyncio.create_task(api.insert_many("sdk", [f"{n}"]))
                for _ in range(n % 30):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            told = await asyncio.gather(*(api.insert_many("sdk", [f"end {n}"]) for n in range(40)))
            (error, *_) = api.unresolved
            assert await api.insert_many("sdk", error.batch.items, retry=error) == [True]
            tasks = [asyncio.create_task(api.insert_many("sdk", [f"left {n}"])) for n in range(100)]
            await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return told

    assert asyncio.run(run()) == [[True]] * 40
    gc.collect()
    assert caplog.messages == []


@pytest.mark.parametrize("given", ["address", "client"])
def test_a_cancelled_task_ends(any_server, given):
    """Each one, also while it makes a connection anew, as one that was cancelled before it has broken that off."""
    made(any_server).close()

    async def run():
        client = redis.asyncio.Redis.from_url(any_server.url, socket_timeout=10)
        where = any_server.url if given == "address" else client
        async with await AsyncUriFilter.open("news", redis=where, coalesce=False) as news, client:
            broken, went_on = 0, []
            for number in range(400):
                task = asyncio.create_task(news.unique([f"{number}"]))
                for _ in range(number % 40):
                    await asyncio.sleep(0)
                cancelled = task.cancel()
                await asyncio.wait([task])
                broken += task.cancelled()
                if cancelled and not task.cancelled():
                    went_on.append(number)
            assert await news.unique(["end"]) == ["end"]
        return broken, went_on

    broken, went_on = asyncio.run(run())
    assert went_on == []
    assert broken > 50


@contextlib.contextmanager
def suspended(server):
    server.suspend()
    try:
        yield
    finally:
        server.resume()


REFUSED = "no connection became free in 0.3 s, as all 1 are in use: raise connections=.*gave up after 0.3 s"


def test_the_patience_of_threads(any_server):
    """Who finds no connection within ``timeouts.total`` hears why, and may ask again; nothing of it was sent."""
    made(any_server).close()
    with UriFilter.open("news", redis=any_server.url, connections=1, timeouts=Timeouts(reply=30, total=0.3)) as news:
        first = threading.Thread(target=news.insert, args=("a",))
        with suspended(any_server):
            first.start()
            wait_until(lambda: news._session.pending._owners, "the first asks")
            time.sleep(0.05)
            with pytest.raises(ServerUnavailable, match=REFUSED) as caught:
                news.insert("b")
        first.join()
        assert type(caught.value) is ServerUnavailable
        assert (news.insert("a"), news.insert("b", retry=caught.value)) == (False, True)


def test_the_patience_of_tasks(any_server):
    """The same, awaited."""
    made(any_server).close()

    async def run():
        timeouts = Timeouts(reply=30, total=0.3)
        news = await AsyncUriFilter.open("news", redis=any_server.url, connections=1, timeouts=timeouts, coalesce=False)
        with suspended(any_server):
            first = asyncio.create_task(news.insert("a"))
            await asyncio.sleep(0)
            with pytest.raises(ServerUnavailable, match=REFUSED) as caught:
                await news.insert("b")
        assert await first is True
        assert type(caught.value) is ServerUnavailable
        assert (await news.insert("a"), await news.insert("b", retry=caught.value)) == (False, True)
        await news.close()

    asyncio.run(run())


def test_forked_while_threads_ask(server):
    """A child of a process whose connections are all in use has connections of its own, and all of them."""
    with made(server, connections=4) as news:
        end = threading.Event()

        def ask(n: int) -> None:
            while not end.is_set():
                news.insert(f"parent {n}")

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        children = []
        for _ in range(10):
            if (pid := os.fork()) == 0:
                answers = in_threads(8, lambda n: news.insert(f"child {n % 4}"))
                os._exit(sum(each is True for each in answers) if all(a in {True, False} for a in answers) else 99)
            children.append(pid)
            time.sleep(0.005)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        end.set()
        for thread in threads:
            thread.join()
        assert sum(codes) == 4
        assert collections.Counter(news.ages([f"child {n}" for n in range(4)])) == {1: 4}


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_a_connection_that_is_reset_at_once(loops):
    """As by a proxy whose server is away: the server is unavailable, also where uvloop has a RuntimeError for it."""
    run = pytest.importorskip(loops).run

    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}"

    def reset_all() -> None:
        with contextlib.suppress(OSError):  # the listener is shut down
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

    async def open_often() -> None:
        for _ in range(60):  # where in the exchange it is reset is a matter of luck
            with pytest.raises(ServerUnavailable):
                await AsyncUriFilter.open("news", redis=url, timeouts=Timeouts(total=0))

    resetting = threading.Thread(target=reset_all)
    resetting.start()
    try:
        run(open_often())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        resetting.join()


def close_idle(pool) -> None:
    while pool.idle:
        pool.idle.pop().disconnect()


def interrupt_connects(news, sample, wanted: str) -> int:
    """Interrupt a call at places of a new connection, in our pool and in redis-py; ask after each; return how many."""
    pool = news._connector._given.pool
    packages = ("transport/pool.py", "redis/connection.py")
    close_idle(pool)
    with Interrupt(0, packages) as counted:
        news.contains("warm")
    for at in sample(range(1, counted.places + 1), 40):
        close_idle(pool)
        with Interrupt(at, packages), contextlib.suppress(KeyboardInterrupt):
            news.contains("warm")
        assert (news.contains("warm"), news.contains(f"never {at}")) == (True, False), at
        assert news.insert(f"{wanted} {at}") is True, at
    return counted.places


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("given", ["address", "client"])
def test_places_in_a_new_connection(server, given, sample):
    """Ctrl-C at any of them: the next answers are those of their own calls, and from the database that was named."""
    url = f"{server.url.partition('?')[0].removesuffix('/0')}/5"
    with redis.Redis.from_url(url) as client:
        with made(server, at=url if given == "address" else client) as news:
            assert interrupt_connects(news, sample, given) > 100
        assert client.exists("urifilter:{news:0}:meta") == 1
    assert server.ask("keys", "urifilter:*") == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_places_in_a_new_connection_of_a_forked_child(server, sample):
    """The child's connections are its own; an interrupted one is closed there, too, and the filter is found."""
    url = f"{server.url.partition('?')[0].removesuffix('/0')}/5"
    with made(server, at=url) as news:
        if (child := os.fork()) == 0:
            try:
                interrupt_connects(news, sample, "child")
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Liar(Proxy):
    """Answers the next ``lies`` EVALSHAs with another reply than the server's; counts the connections."""

    lies = connected = 0
    reply = b""

    def _serve(self, client) -> None:
        self.connected += 1
        super()._serve(client)

    def _reply_to(self, command, raw):
        if not self.lies or not self._concerned(command):
            return raw
        self.lies -= 1
        return self.reply


@pytest.mark.quick
@pytest.mark.parametrize("reply", [b"+OK\r\n", b":1\r\n", b"*2\r\n:0\r\n:0\r\n", b"*1\r\n+OK\r\n"])
def test_a_reply_that_is_not_the_commands(any_server, clients, reply):
    """It counts as lost: the connection is closed, and the call is sent again under its id, over another."""
    made(any_server).close()
    with Liar(any_server.port) as proxy:
        proxy.reply = reply
        with clients.open("news", redis=proxy.url) as news:
            proxy.lies = 1
            assert (news.insert("a"), news.insert("a")) == (True, False)
        assert (proxy.lies, proxy.connected) == (0, 2)


def test_a_client_that_waits_for_ever_is_given(any_server, clients):
    """Its own patience, and its own retries, do not count: ``timeouts=`` holds."""
    made(any_server).close()
    retry = (AsyncRetry if clients.awaited else Retry)(ConstantBackoff(3600), 10)
    forever = {"socket_timeout": None, "socket_connect_timeout": None, "retry": retry}
    client = library_of(clients).Redis.from_url(any_server.url, **forever)
    news = clients.open("news", redis=client, timeouts=Timeouts(connect=2, reply=2, total=0))
    with pytest.raises(ServerUnavailable), suspended(any_server):
        news.contains("a")
    clients.wait(client.aclose() if clients.awaited else client.close())


ITEMS = [f"u{i}" for i in range(300)]


def opened(server):
    """Make the filter, and open it by the awaited client, in no loop that goes on."""
    made(server).close()
    return asyncio.run(AsyncUriFilter.open("news", redis=server.url))


def test_a_second_run(server):
    """Each ``asyncio.run`` gets its answers over connections of its own."""
    news = opened(server)
    for n in range(5):
        assert asyncio.run(news.insert_ages([f"{n}/a", f"{n}/b"])) == [0, 0]
        assert asyncio.run(news.unique([f"{n}/a", f"{n}/c"])) == [f"{n}/c"]
    asyncio.run(news.close())


def test_many_runs(service, any_server, admin):
    """Each run ends with its connections: neither this process nor the server runs out of them."""
    news = opened(any_server)
    UriFilter.create("sdk", redis=any_server.url, capacity=10_000).close()
    api = AsyncFilterAPIClient(service.url)

    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))

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


def test_a_client_of_another_loop(any_server, admin):
    """A client that was given belongs to one loop: elsewhere nothing is sent, and the error says what to do."""
    made(any_server).close()
    client = redis.asyncio.Redis.from_url(any_server.url)

    async def first():
        news = await AsyncUriFilter.open("news", redis=client)
        assert await news.insert("a") is True
        await client.aclose()
        return news

    news = asyncio.run(first())
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


def test_the_sdk_in_several_loops(service, any_server):
    """The SDK's awaited client likewise: a second run, and a child in its parent's loop."""
    UriFilter.create("sdk", redis=any_server.url, capacity=1000).close()
    api = AsyncFilterAPIClient(service.url)
    for n in range(3):
        assert asyncio.run(api.insert_ages("sdk", [f"{n}"])) == [0]

    async def left():
        """Of a call that is refused nothing is unresolved, because nothing was sent."""
        with contextlib.suppress(FilterAPIError):
            await api.insert_ages("sdk", ["c"])
        raise ValueError(len(api.unresolved))

    async def parent():
        assert await api.insert_ages("sdk", ["a"]) == [0]
        for ask in (api.filters, lambda: api.insert_ages("sdk", ["b"])):
            said = await refused_in_child(ask)
            assert said.startswith(f"{FilterAPIError.__name__}: no event loop of asyncio runs here")
        assert await refused_in_child(left) == "ValueError: 0"
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
