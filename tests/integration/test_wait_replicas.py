"""``wait_replicas``: an answer is believed once so many replicas have it."""

from __future__ import annotations

import asyncio
import json

import pytest
from support import cli
from support.sentinels import catch_up
from support.servers import KINDS, wait_until
from support.service import Service, ask, request

from urifilter_redis import AnswerLost, Timeouts, UriFilter, UriFilterError
from urifilter_redis.transport.connections import AsyncConnector
from urifilter_redis.transport.url import Address

pytestmark = pytest.mark.slow

FEW = "replicas have the answer"

#: Such a wait for replicas lasts 2.4 s, and the reply has 0.6 s more. So the first attempt that runs and that no
#: replica has is the last one, and says so, however slow the machine is.
SHORT = Timeouts(reply=3, total=1)


@pytest.fixture
def pair(replicated):
    master, replica = replicated()
    UriFilter.create("news", redis=master.url, capacity=10_000, error_rate=1e-8, layout="counting").close()
    return master, replica


def has(replica, uri: str) -> bool:
    """Whether a replica has an item, by its own account."""
    with UriFilter.open("news", redis=replica.url) as there:
        return there.contains(uri)


def test_a_replica_is_away(pair):
    """An answer that no replica has in time is lost, in words."""
    master, replica = pair
    with UriFilter.open("news", redis=master.url) as news:
        news.insert("a")  # which loads the script
    with UriFilter.open("news", redis=master.url, wait_replicas=1, timeouts=Timeouts(reply=0.5, total=0.4)) as news:
        replica.suspend()

        def lost() -> str:
            with pytest.raises(AnswerLost) as caught:
                news.insert("b")
            return str(caught.value)

        # on a busy machine the reply may be too late, too
        wait_until(lambda: "0 of 1 replicas have the answer; gave up after 0.4 s" in lost(), "never for this reason")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_that_stands_still(replicated, clients, kind):
    """The answer is lost, in words; asked again when the replica is back it is right, and the replica has it."""
    master, replica = replicated(kind)
    with clients.create("news", redis=master.url, capacity=1000, wait_replicas=1, timeouts=SHORT) as news:
        assert news.insert_many(["a", "b"], retry=None) == [True, True]
        assert has(replica, "a")
        replica.suspend()
        with pytest.raises(AnswerLost, match=FEW) as lost:
            news.insert_many(["b", "c"])
        for _ in range(2):  # a server says that a replica has all of a connection that has written nothing
            with pytest.raises(AnswerLost, match=FEW) as again:
                news.insert_many(["b", "c"], retry=lost.value)
            assert again.value.answers == [None, None]
        replica.resume()
        clients.wait_until(lambda: has(replica, "c"), "the replica does not catch up")
        assert news.insert_many(["b", "c"], retry=lost.value) == [False, True]
        assert news.insert("c") is False


def test_a_replica_that_is_killed(pair, clients):
    """Nothing is believed until there is a replica again; nothing is told twice."""
    master, replica = pair
    with clients.open("news", redis=f"{master.url}?wait_replicas=1", timeouts=SHORT) as news:
        replica.kill()
        with pytest.raises(AnswerLost, match=FEW) as lost:
            news.insert("a")
        replica.start()
        replica.ask("replicaof", "127.0.0.1", master.port)
        while True:
            try:
                assert news.insert("a", retry=lost.value) is True
                break
            except AnswerLost:  # it does not follow yet
                pass
        assert has(replica, "a")


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["insert_many", "forget", "remove", "claim", "commit", "release", "reclaim"])
def test_each_command_that_is_told_waits(pair, clients, command):
    """Of each the answer is lost while the replica stands still, and is the same afterwards."""
    master, replica = pair
    with (
        clients.open("news", redis=master.url, wait_replicas=1, timeouts=SHORT) as news,
        news.claims() as mine,
        news.claims() as other,
    ):
        mine.claim("mine")
        other.claim("given back")
        other.release(["given back"])
        news.insert_many(["seen"])  # at last: from now on this client knows that there are claims (STALE)
        methods = {
            "insert_many": (news.insert_many, ["new", "seen"], [True, False]),
            "forget": (news.forget, ["new", "seen"], [False, True]),
            "remove": (news.remove, ["new", "seen"], [False, True]),
            "claim": (mine.claim_many, ["new", "seen"], [True, False]),
            "commit": (mine.commit, ["mine"], [True]),
            "release": (mine.release, ["mine"], [True]),
        }
        replica.suspend()
        if command == "reclaim":
            with pytest.raises(UriFilterError, match=FEW):
                mine.reclaim(10)
            replica.resume()
            news.close()
            return
        method, items, answers = methods[command]
        with pytest.raises(AnswerLost, match=FEW) as lost:
            method(items)
        replica.resume()
        catch_up(master, replica)
        assert method(items, retry=lost.value) == answers


@pytest.mark.quick
def test_many_tasks_wait_together(any_server):
    """One WAIT is for all calls of a pipeline that many tasks share: it would hold up those behind it."""
    wait = ("WAIT", "1", "50")

    async def run() -> list:
        connector = AsyncConnector(Address(any_server.url), Timeouts(), wait_replicas=1)
        try:
            return await connector.send([("SET", "a", 1), wait, ("GET", "a"), ("SET", "b", 1), wait, wait])
        finally:
            await connector.close()

    before = _calls(any_server, "wait")
    asyncio.run(run())
    once = _calls(any_server, "wait") - before
    assert asyncio.run(run()) == [b"OK", 0, b"1", b"OK", 0, 0]
    any_server.ask("wait", 1, 1)
    assert _calls(any_server, "wait") - before - 2 * once == once


def _calls(server, command: str) -> int:
    return server.ask("info", "commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_a_keyed_call_of_another_process(pair):
    """A request under a key that is repeated by another process waits for the replica, and is answered as at first."""
    master, replica = pair
    body = {"filter_typeid": "news", "URI_list": ["a"]}
    path, url = "/cr-clawr/uri_filter/api/uri_filter", f"{master.url}?wait_replicas=1"
    with Service(url) as first, Service(url) as second:
        replica.suspend()
        refused = _post(first, path, body)
        assert refused.status == 503, refused.body
        replica.resume()
        told = _post(second, path, body)
        assert (told.status, told.json()["URI_list_unique"]) == (200, ["a"])
        assert has(replica, "a")
        assert ask(first, "POST", path, body).json()["unique"] == 0


def _post(service, path, body):
    with service.raw() as connection:
        return connection.ask(request("POST", path, json.dumps(body).encode(), Idempotency_Key="ab" * 8 + "/0/1"))


@pytest.mark.usefixtures("usual_timeouts")
def test_command_line(pair, monkeypatch):
    """The address has the option, also that of the environment; the error is in words."""
    master, replica = pair
    address = f"{master.url}?wait_replicas=1"
    out, _ = cli.run("--redis", address, "dedupe", "--filter", "news", given=b"a\n")
    assert out == b"a\n"
    assert _calls(master, "wait") > 0
    replica.kill()
    monkeypatch.setenv("URIFILTER_REDIS_URL", address)
    _, err = cli.run("dedupe", "--filter", "news", given=b"b\n", code=2)
    assert FEW in err


def test_scrapy(pair):
    """The setting that has the address has the option."""
    pytest.importorskip("scrapy", reason="Scrapy is not installed: pip install '.[scrapy]'")
    import scrapy
    from support.scrapy_parts import A, run

    master, _ = pair

    async def test(parts):
        await parts.begun(scrapy.Request(A))
        assert _calls(master, "wait") > 0

    run(master, test, URIFILTER_REDIS_URL=f"{master.url}?wait_replicas=1", URIFILTER_NAME="pages")


@pytest.mark.parametrize("option", [{"wait_replicas": 1}, {"reads": "replicas"}])
def test_the_embedded_server_has_none(option):
    with pytest.raises(ValueError, match="the embedded server has no replicas"):
        UriFilter.create("news", capacity=1000, **option)
