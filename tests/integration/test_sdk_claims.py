"""Claims of the SDK: the same object as the library's, by the service, and against what goes wrong on the way to it."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time

import pytest
from support.blocked import SDK, Clients
from support.proxy import Fault, HttpProxy, never
from support.servers import wait_until
from support.service import ask

from urifilter_redis import Claim, FilterAPIError, Timeouts
from urifilter_redis.engine import driver, holdings
from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPIClient, claims_backend

pytestmark = pytest.mark.slow

QUICK = Timeouts(connect=1, reply=2, total=1)


@pytest.mark.quick
def test_the_object(api, news):
    """It is the library's own, knows its name, its lease and its holder, and says that it is closed."""
    with api.claims("news", lease=60, name="one") as mine, news.claims() as other:
        assert type(mine) is type(other)
        assert (mine.name, mine.lease, len(mine.holder)) == ("one", 60.0, 16)
        assert mine.claim({"x": [1]}) is True
        assert mine.unresolved == []
    assert json.loads(json.dumps(mine.held)) == []
    with pytest.raises(ValueError, match="these claims are closed"):
        mine.claim("z")


def test_awaited(service, news):
    """The same, awaited, by tasks that share an object."""

    async def go():
        async with AsyncFilterAPIClient(service.url) as api, api.claims("news") as mine:
            uris = [f"https://example.com/{i}" for i in range(100)]
            told = await asyncio.gather(*(mine.unique(uris[i : i + 20]) for i in range(0, 90, 10)))
            assert sorted(uri for some in told for uri in some) == sorted(uris)
            assert await mine.commit(uris[:60]) == [True] * 60
            assert await mine.release(uris[60:], failed=True) == [True] * 40
            found = await mine.reclaim(30)
            assert [each.failures for each in found] == [1] * 30
            assert len(mine.held) == 30
            assert (await mine.outstanding()).others == 10
            return mine

    mine = asyncio.run(go())
    assert repr(mine).endswith("closed>")
    assert len(news.claims().reclaim(100)) == 40


def until_of(redis) -> float:
    """Until when the only holder lives, at most."""
    client = redis.client()
    return max(
        (until for key in client.keys("*holders") for _, until in client.zrange(key, 0, -1, withscores=True)), default=0
    )


@pytest.fixture(params=SDK)
def clients(request):
    with Clients(request.param) as made:
        yield made


def test_beats(clients, service, news, any_server):
    """An object that makes no call keeps what it has."""
    with clients.open(redis=service.url).claims(lease=5) as mine:
        mine.claim_many(["a", "b"])
        held, before = mine.held, until_of(any_server)
        clients.wait_until(lambda: until_of(any_server) > before + 1000, "nobody beats")
        assert mine.held == held


def test_beats_end_with_their_client(clients, service, news):
    """A thread or a task of an object that nobody closes."""

    def beating():
        return [*(each for each in threading.enumerate() if each.name == "urifilter-beat"), *clients.tasks]

    before = beating()
    api = clients.open(redis=service.url)
    mine = api.claims()
    mine.claim("a")
    assert len(beating()) > len(before)
    api.close()
    assert [each for each in beating() if each not in before] == []


def test_beats_survive_a_service_that_is_away(service, news, any_server, caplog):
    """They fail, say so once, and go on once it is back."""
    with (
        HttpProxy(service.port) as proxy,
        FilterAPIClient(proxy.url, timeouts=QUICK) as api,
        api.claims("news", lease=5) as mine,
    ):
        mine.claim("a")
        proxy.plan = lambda _: Fault.CUT_BEFORE
        wait_until(lambda: "a beat failed, and the next ones are tried" in caplog.text, "no beat fails")
        proxy.plan = lambda _: Fault.PASS
        before = until_of(any_server)
        wait_until(lambda: until_of(any_server) > before, "nobody beats any more")
        assert mine.commit(["a"]) == [True]
    assert caplog.text.count("a beat failed") == 1


def test_closed_after_the_filter_was_dropped(api, news, caplog):
    """That is told, once, and nothing of a lease, which ended with it."""
    with api.claims("news") as mine:
        mine.claim("a")
        news.drop()
    (told,) = [each.message for each in caplog.records if each.name == "urifilter_redis"]
    assert told.endswith("the filter is gone, and what was in flight with it")


def test_closed_while_the_service_is_away(service, news, caplog):
    """It is said that what is left is free after its lease."""
    with (
        HttpProxy(service.port) as proxy,
        FilterAPIClient(proxy.url, timeouts=QUICK) as api,
        api.claims("news") as mine,
    ):
        mine.claim("a")
        proxy.plan = lambda _: Fault.CUT_BEFORE
    assert "free after its lease only" in caplog.text
    assert [each.item for each in mine.held] == ["a"]


def claims_unseen(service, mine, *uris):
    """Let the holder of an object claim items of which the object gets no answer."""
    body = {"items": uris, "holder": mine.holder, "lease": 5}
    assert ask(service, "POST", "/v1/filters/news/claim", body).json()["unique"] == len(uris)


def test_unknown_items_are_let_go(service, api, news, any_server):
    """A beat counts more than the object knows: it is another holder from then on, with all that it knows."""
    with api.claims("news", lease=5) as mine, news.claims(lease=5) as other:
        assert mine.claim_many(["a", {"x": 1}], payload=lambda item: {"of": item}) == [True, True]
        other.claim(b"odd\xff")
        other.release([b"odd\xff"], failed=True)
        assert [each.failures for each in mine.reclaim()] == [1]
        claims_unseen(service, mine, "lost")
        holder = mine.holder
        wait_until(lambda: mine.holder != holder and len(mine.held) == 2, "it stays the same holder")
        assert mine.held == [Claim("a", {"of": "a"}), Claim({"x": 1}, {"of": {"x": 1}})]
        assert other.claim_ages(["a", "lost", {"x": 1}]) == [-1, -1, -1]

        def all_that_was_let_go():
            other.reclaim()
            return {each.item for each in other.held} == {"lost", b"odd\xff"}

        wait_until(all_that_was_let_go, "what is not known is kept")
        assert mine.commit(["a", {"x": 1}]) == [True, True]
        assert ask(service, "POST", "/v1/filters/news/beat", {"holder": mine.holder}).json()["in_flight"] == 0


@pytest.mark.parametrize("call", ["claim", "reclaim"])
@pytest.mark.parametrize("how", ["lost", "interrupted under way", "interrupted when answered"])
def test_unknown_items_are_let_go_where_nothing_is_in_flight(service, news, monkeypatch, call, how):
    """A quick crawler has nothing at each beat, and its calls would keep them."""
    monkeypatch.setattr(holdings, "CALL_LIFE", 0)  # ms for which a call in doubt may still run
    perform, requests = driver.perform_step, []

    def interrupted(*arguments):
        perform(*arguments)
        raise KeyboardInterrupt

    def interrupt(*_):
        raise KeyboardInterrupt

    with (
        HttpProxy(service.port) as proxy,
        FilterAPIClient(proxy.url, timeouts=QUICK) as api,
        api.claims("news") as mine,
        news.claims() as other,
    ):
        holder = mine.holder
        if call == "reclaim":
            other.claim_many(["a", "b"])
            other.release(["a", "b"])
        with pytest.raises((FilterAPIError, KeyboardInterrupt)), monkeypatch.context() as patched:
            if how == "lost":
                proxy.plan = lambda _: Fault.CUT_AFTER
            elif how == "interrupted under way":
                patched.setattr(driver, "perform_step", interrupted)
            else:
                patched.setattr(mine._backend.pending, "answered", interrupt)
                patched.setattr(mine._holdings, "note_round", interrupt)
            mine.reclaim(2) if call == "reclaim" else mine.claim_many(["a", "b"])
        assert (mine.held, len(news.in_flight())) == ([], 2)
        proxy.plan = lambda _: Fault.PASS
        assert mine.outstanding().others == 1  # so that a crawl does not end
        proxy.plan = lambda command: requests.append(command[0].split()[1]) or Fault.PASS
        mine._beat_once()
        assert mine.holder != holder
        assert ask(service, "POST", "/v1/filters/news/beat", {"holder": mine.holder}).json()["in_flight"] == 0
        mine._beat_once()
        assert requests == [b"/v1/filters/news/beat"]


@pytest.mark.parametrize("end", ["release", "commit"])
def test_an_end_that_is_answered_late(service, news, end):
    """The object has claimed the item once more since it was sent: that claim goes on, and is beaten for."""
    with (
        HttpProxy(service.port) as proxy,
        FilterAPIClient(proxy.url, timeouts=QUICK) as api,
        api.claims("news") as mine,
    ):
        mine.claim("x")
        method = getattr(mine, end)
        proxy.plan = lambda _: Fault.CUT_AFTER
        with pytest.raises(FilterAPIError) as lost:
            method(["x"])
        proxy.plan = lambda _: Fault.PASS
        if end == "release":
            wait_until(mine.reclaim, "what was released does not come back")
        else:
            news.forget(["x"])
            assert mine.claim("x") is True
        assert method(["x"], retry=lost.value) == [True]
        assert [each.item for each in mine.held] == ["x"]


def test_unknown_items_of_an_idle_object_lapse(service, news):
    """While the call that took them is in doubt, the number of a beat does not count, and none keeps them alive."""
    requests = []
    with (
        HttpProxy(service.port) as proxy,
        FilterAPIClient(proxy.url, timeouts=QUICK) as api,
        api.claims("news") as mine,
    ):
        proxy.plan = lambda _: Fault.CUT_AFTER
        with pytest.raises(FilterAPIError):
            mine.claim("a")
        proxy.plan = lambda command: requests.append(command) or Fault.PASS
        mine._beat_once()
        mine.close()
        assert requests == []


def test_a_beat_between_a_claim_and_its_answer(api, news, monkeypatch):
    """It counts an item that the object does not know yet, and is no reason to become another holder."""
    with api.claims("news", lease=60) as mine, news.claims() as other:
        assert mine.claim("a") is True
        holder, perform, beaten = mine.holder, driver.perform_step, []

        def beating(step, sender):
            outcome = perform(step, sender)
            if not beaten:
                beaten.append(step)
                mine._beat_once()
            return outcome

        monkeypatch.setattr(driver, "perform_step", beating)
        assert mine.claim("b") is True
        assert (mine.holder, len(mine.held)) == (holder, 2)
        assert other.claim_many(["a", "b"]) == [False, False]


def test_items_that_are_gone_are_dropped(api, news):
    """A beat counts fewer: what others have committed meanwhile is held no longer, and the rest is."""
    with api.claims("news", lease=5) as mine:
        mine.claim_many(["a", "b", "c"])
        news.commit(["b"])
        wait_until(lambda: {each.item for each in mine.held} == {"a", "c"}, "it is still held")
        assert news.release(["a", "c"]) == [True, True]


def test_what_was_released_is_not_waited_for(api, news):
    """A round that found nothing has a pause after it, which ends when an item that is released then is due."""
    with api.claims("news", lease=3600) as mine:
        mine.claim("a")
        assert mine.reclaim() == []
        assert mine.outstanding().others == 0
        assert mine.release(["a"]) == [True]
        assert mine.outstanding().others == 1
        wait_until(mine.reclaim, "it is not offered again")
        assert [each.item for each in mine.held] == ["a"]
        assert mine.outstanding().others == 0


def test_an_end_is_never_told_by_an_older_look(api, news):
    """As the library's: the figures of a look end no crawl, with or without an answer of -1."""
    with api.claims("news", lease=60) as mine, news.claims() as theirs:
        assert mine.reclaim() == []
        theirs.claim("x")
        assert mine.outstanding().others == 1
        theirs.commit(["x"])
        assert mine.reclaim() == []
        theirs.claim("y")
        assert mine.claim_ages(["y"]) == [-1]
        assert mine.outstanding().others == 1
        theirs.commit(["y"])


def test_many_calls_share_one_look(service, news, monkeypatch):
    """Two hundred tasks that find nothing pause once, and ``info`` ends their pause."""
    passed = [0.0]
    for module in (holdings, claims_backend):
        monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + passed[0])

    async def go(theirs):
        async with AsyncFilterAPIClient(service.url) as api, api.claims("news", lease=60) as mine:
            assert await asyncio.gather(*(mine.reclaim() for _ in range(200))) == [[]] * 200
            passed[0] += 20
            assert await mine.reclaim() == []  # it looks again: the pauses are those of one call
            passed[0] += 20
            theirs.claim("a")
            assert await mine.reclaim() == []
            assert (await api.info("news"))["info"]["claims"]["in_flight"] == 1
            theirs.release(["a"])
            return await mine.reclaim()

    with news.claims() as theirs:
        assert asyncio.run(go(theirs)) == [Claim("a", "a")]


def test_released_while_it_becomes_another_holder(service, news):
    """An item that is released on its way from the old holder's hands to the new one's is offered again."""
    with (
        HttpProxy(service.port) as proxy,
        FilterAPIClient(proxy.url) as api,
        api.claims("news", lease=5) as mine,
        news.claims(lease=5) as other,
    ):
        mine.claim_many(["a", "b"])
        claims_unseen(service, mine, "lost")
        between, released, moved = threading.Event(), threading.Event(), threading.Event()

        def hold_back(command):
            if released.is_set() and b"/release " in command[0]:
                moved.set()  # the claim came before
            if b"/claim " not in command[0] or released.is_set():
                return Fault.PASS
            between.set()
            return Fault.CUT_BEFORE

        proxy.plan = hold_back
        wait_until(between.is_set, "it stays the same holder")
        assert mine.release(["a"]) == [False]
        released.set()
        wait_until(moved.is_set, "it does not go on")
        wait_until(lambda: "a" in {each.item for each in [*other.reclaim(), *other.held]}, "nobody is offered it")
        assert [each.item for each in mine.held] == ["b"]


def test_the_interpreter_ends(service, news):
    """An object that was never closed keeps no interpreter from ending; its items lapse."""
    code = f"""
from urifilter_redis.sdk import FilterAPIClient
mine = FilterAPIClient({service.url!r}).claims("news", lease=5)
print(mine.claim("a"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert news.claims().claim_ages(["a"]) == [-1]


def test_an_object_that_is_collected_beats_no_more(api, news):
    """Its thread ends."""
    before = {*threading.enumerate()}
    mine = api.claims("news", lease=5)
    mine.claim("a")
    (thread,) = {*threading.enumerate()} - before
    assert thread.name == "urifilter-beat"
    del mine
    gc.collect()
    wait_until(lambda: not thread.is_alive(), "it goes on")


def test_a_claim_of_an_earlier_holder(service, news):
    """``retry=`` after the object has become another holder: what it claims moves to that."""
    with (
        HttpProxy(service.port) as between,
        FilterAPIClient(between.url, timeouts=QUICK) as api,
        api.claims("news", lease=60) as mine,
        news.claims() as other,
    ):
        between.plan = lambda _: Fault.CUT_AFTER
        with pytest.raises(FilterAPIError) as lost:
            mine.claim_many(["a", "b"])
        between.plan = never
        mine._run(mine._backend._renew())
        assert mine.claim_many(["a", "b"], retry=lost.value) == [True, True]
        mine._beat_once()
        assert {each.item for each in mine.held} == {"a", "b"}
        assert other.claim_many(["a", "b"]) == [False, False]
        assert ask(service, "POST", "/v1/filters/news/beat", {"holder": mine.holder}).json()["in_flight"] == 2
