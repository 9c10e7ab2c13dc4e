"""Claims by both clients: looks and pauses, the near cache, forks, closing, and calls that fail half-way."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import pickle
import threading
import time

import pytest
import redis as redis_py
from support.killer import SCRIPTS
from support.proxy import Fault, Proxy, first
from support.together import together

from urifilter_redis import AnswerLost, AsyncUriFilter, Claim, Outstanding, Timeouts, UriFilter
from urifilter_redis.engine import driver, holdings
from urifilter_redis.flows import reclaim
from urifilter_redis.protocol.outcomes import Unanswered

PRECISE = {"capacity": 10_000, "error_rate": 1e-8}


@pytest.fixture
def news(clients, any_server):
    return clients.create("news", redis=any_server.url, **PRECISE)


@pytest.fixture
def other(clients, news, any_server):
    """Another client of the filter."""
    return clients.open("news", redis=any_server.url)


def test_bounds(news):
    """A holder is 16 digits; one closes with a delay of at most a week."""
    for holder in ("0011223344556677", "12", "g" * 16):
        with pytest.raises(ValueError, match="a holder is 16 hex digits"):
            news.claims(holder=holder)
    mine = news.claims()
    mine.claim("a")
    for delay in (-1, 604_801, True, float("nan")):
        with pytest.raises(ValueError, match="a delay is 0 to 604800 seconds"):
            mine.close(delay)
    assert [claim.item for claim in mine.held] == ["a"]


def test_two_objects_are_two_holders(news):
    """A name is for display; the same name does not make the same holder."""
    mine, theirs = news.claims(name="one"), news.claims(name="one")
    assert mine.name == theirs.name == "one"
    assert mine.holder != theirs.holder
    assert "'one'" in repr(mine)
    assert mine.claim("a") is True
    assert theirs.release(["a"]) == [False]
    assert "1 in flight" in repr(mine)
    mine.close()
    theirs.close()


def test_closed_after_its_filter_was_dropped(clients, any_server, news, caplog):
    """When the filter is gone, that is told, once, and nothing of a lease, which ended with it."""
    with caplog.at_level(logging.WARNING), news.claims() as mine:
        mine.claim("a")
        news.drop()
    (told,) = [each.message for each in caplog.records]
    assert told.endswith("the filter is gone, and what was in flight with it")


def test_nothing_is_pickled(news):
    """What is in flight is in the hands of one process: neither pickle nor copy takes it."""
    mine = news.claims()
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="claims cannot be pickled"):
            take(mine)


def test_by_hand(news, other):
    """Without a holder: commit and release touch anybody's; ``beat`` and ``holder=`` go on as a given holder."""
    mine = news.claims(holder="0123456789abcdeF", beats=False)
    assert mine.holder == "0123456789abcdef"
    assert mine.claim_many(["a", "b", "c"]) == [True] * 3
    assert news.beat("0123456789ABCDEF", lease=30) == 3
    assert other.commit(["a"]) == [True]
    assert other.release(["b"], failed=True) == [True]
    assert news.beat("0123456789abcdef") == 1
    mine.close()  # which gives nothing back, because it did not beat
    assert news.claims(holder="0123456789abcdef", beats=False).release(["c"]) == [True]
    with other.claims() as theirs:
        assert sorted(theirs.reclaim(), key=lambda claim: claim.item) == [Claim("b", "b", 1), Claim("c", "c")]


def test_the_pause_after_an_empty_round(news, other, admin):
    """An empty round is followed by a pause, in which the server is not asked; one's own release ends it."""
    with other.claims() as theirs, news.claims(lease=60) as mine:
        theirs.claim("a")
        assert mine.reclaim() == []
        admin.config_resetstat()
        assert mine.reclaim() == []
        left = mine.outstanding()
        assert left.others == 1
        assert 19 < left.due <= 60.2
        assert "cmdstat_evalsha" not in admin.info("commandstats")
        assert "cmdstat_zrange" not in admin.info("commandstats")
        mine.claim("b")
        mine.release(["b"])
        assert mine.outstanding().others == 2
        waited = mine.outstanding().due
        assert waited <= holdings.AFTER_DUE
        threading.Event().wait(waited)
        assert mine.reclaim() == [Claim("b", "b")]


@pytest.fixture
def later(monkeypatch):
    """Let seconds pass for the claims of this process: ``later(60)``."""
    passed = [0.0]
    for module in (holdings, reclaim):
        monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + passed[0])

    def more(seconds: float) -> None:
        passed[0] += seconds

    return more


@pytest.mark.parametrize("lease", [5, 60])
def test_many_calls_share_one_look(any_server, admin, make_filter, lease, later):
    """Two hundred tasks that find nothing look once, and pause once; so they soon get what another releases."""

    async def go(theirs):
        async with await AsyncUriFilter.open("news", redis=any_server.url) as news, news.claims(lease) as mine:
            await mine.claim("own")
            admin.config_resetstat()
            assert await asyncio.gather(*(mine.reclaim() for _ in range(200))) == [[]] * 200
            assert admin.info("commandstats")["cmdstat_zlexcount"]["calls"] == 2  # of two shards
            theirs.claim("a")
            left = await mine.outstanding()
            assert (left.others, left.due > lease / 3) == (1, True)
            theirs.release(["a"])
            later(lease / 3)
            return await mine.reclaim()

    with make_filter(**PRECISE, shards=2).claims(600) as theirs:
        assert asyncio.run(go(theirs)) == [Claim("a", "a")]


@pytest.mark.parametrize("tells", ["info", "told", "outstanding"])
def test_what_info_tells_ends_a_pause(news, other, later, tells):
    """The pauses were long, as others had nothing; what tells that others have something ends them."""
    with news.claims(lease=60) as mine, other.claims() as theirs:
        for _ in range(6):
            assert mine.reclaim() == []
            later(320)
        theirs.claim("a")
        assert mine.reclaim() == []
        if tells == "info":
            assert news.info().claims.in_flight == 1
        elif tells == "told":
            assert mine.claim("a") is False
        else:
            assert mine.outstanding().others == 1
        theirs.release(["a"])
        assert mine.reclaim() == [Claim("a", "a")]


def test_an_answer_while_the_others_are_counted(any_server, make_filter, monkeypatch):
    """The count was read before another claimed, and this object is told so before the count is there."""
    news = make_filter(**PRECISE)
    with UriFilter.open("news", redis=any_server.url) as other, news.claims(lease=60) as mine, other.claims() as theirs:
        perform, sent = driver.perform_step, []

        def told(step, sender):
            outcome = perform(step, sender)
            if not sent:
                sent.append(step)
                theirs.claim("x")
                assert mine.claim("x") is False
            return outcome

        monkeypatch.setattr(driver, "perform_step", told)
        assert mine.outstanding().others == 1
        theirs.commit(["x"])
        assert not mine.outstanding()


def test_without_beats_each_call_is_one(clients, clocked, later):
    """Also a reclaim that finds nothing, ``outstanding``, and what touches other shards: the lease is as they say."""
    server, clock = clocked
    news = clients.create("news", redis=server.url, **PRECISE, shards=3)
    mine, other = news.claims(lease=60, beats=False), news.claims(lease=60, beats=False)
    given = news.claims(lease=60, beats=False, holder=mine.holder)
    assert mine.claim("a") is True
    calls = [mine.reclaim, mine.outstanding, lambda: mine.commit(["b"]), lambda: mine.release(["c"]), given.reclaim]
    for number, call in enumerate(calls, 1):
        clock.ahead(50 * number)
        later(50)
        call()
    clock.ahead(50 * len(calls) + 40)
    assert other.reclaim() == []
    clock.ahead(50 * len(calls) + 70)
    assert other.reclaim() == [Claim("a", "a", lapses=1)]


def test_without_a_pause(news, other):
    """Each reclaim asks the server, also right after an empty round."""
    with other.claims() as theirs, news.claims(lease=60, pauses=False) as mine:
        theirs.claim("a")
        assert mine.reclaim() == []
        theirs.release(["a"])
        assert mine.reclaim() == [Claim("a", "a")]


def test_an_entry_that_cannot_be_read(news, admin):
    """It does not hide those beside it; alone, it is raised."""
    with news.claims() as dead:
        dead.claim_many(["a", "b"])
    entries = admin.hgetall("urifilter:{news:0}:leases")
    digest = next(each for each, entry in entries.items() if entry.endswith(b"sa"))
    admin.hset("urifilter:{news:0}:leases", digest, entries[digest][:-2] + b"?a")
    with news.claims() as mine:
        assert mine.reclaim() == [Claim("b", "b")]
        assert mine.commit(["b"]) == [True]
    with news.claims() as mine, pytest.raises(Exception, match="an entry .* that cannot be read"):
        mine.reclaim()


def test_growing_in_claim_and_commit(clients, any_server):
    """A full slice makes the next, in claim and in commit; what is in flight counts nowhere until it is committed."""
    news = clients.create("news", redis=any_server.url, capacity=500, error_rate=1e-6, retention="growing")
    with news.claims() as mine:
        assert mine.claim_many(range(450)) == [True] * 450
        assert news.epoch() == 0
        assert mine.commit(range(450)) == [True] * 450
        assert mine.claim_many(range(450, 700)) == [True] * 250
        assert mine.commit(range(450, 700)) == [True] * 250
        assert news.epoch() >= 1
        assert mine.claim_many(range(700)) == [False] * 700
    assert news.inserted() == 700


def test_near_cache(clients, any_server):
    """It learns what is committed or seen, and never what is claimed, in flight or released."""
    clients.create("news", redis=any_server.url, **PRECISE)
    news = clients.open("news", redis=any_server.url, near_cache=100)
    other = clients.open("news", redis=any_server.url)
    with other.claims() as theirs, news.claims() as mine:
        assert mine.claim_many(["a", "b"]) == [True, True]
        theirs.claim("c")
        assert news.insert_many(["a", "c"]) == [False, False]
        assert news.contains_many(["a", "c"]) == [True, True]
        assert mine.claim_many(["a", "c"]) == [False, False]
        mine.release(["b"])
        assert news.contains_many(["b"]) == [False]
        assert news.near_cache.entries == 0
        assert mine.commit(["a"]) == [True]
        assert news.near_cache.entries == 1
        hits = news.near_cache.hits
        assert mine.claim("a") is False
        assert news.insert("a") is False
        assert news.near_cache.hits == hits + 2
        assert mine.claim_ages(["a"]) == [1]
        assert news.near_cache.hits == hits + 2
        assert theirs.commit(["c"]) == [True]
        assert mine.claim("c") is False
        assert news.near_cache.entries == 2
        mine.claim("d")
        assert mine.reject(["d"]) == [True]
        assert news.near_cache.entries == 3
        assert news.retry_dead_letters(["d"]) == 1
        assert news.near_cache.entries == 2
        assert mine.claim("d") is True
        made = []
        claimed = mine.claim_many(["a", "e", "d", "c"], payload=lambda item: made.append(item) or [item])
        assert claimed == [False, True, False, False]
        assert made == ["e", "d"]
        assert mine.claimed(["d", "e"]) == [Claim("d", "d"), Claim("e", ["e"])]


def test_time_passes(clients, clocked):
    """A claim and a commit turn a filter whose period is over, as an insert does."""
    server, clock = clocked
    names = ("claim", "commit")
    for name in names:
        clients.create(name, redis=server.url, retention="ring", slices=3, period="1m", **PRECISE)
    clock.ahead(100)
    for name in names:
        news = clients.open(name, redis=server.url)
        with news.claims() as mine:
            for number in range(20):
                mine.claim(f"{number}") if name == "claim" else mine.commit([f"{number}"])
        assert news.epoch() == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_of_each_protocol(any_server, protocol):
    """Replies of RESP2 and RESP3 mean the same."""
    with (
        redis_py.Redis.from_url(any_server.url, protocol=protocol) as given,
        UriFilter.create("news", redis=given, **PRECISE, shards=3) as news,
    ):
        with news.claims() as dead:
            assert dead.claim_many(["a", "b", "c"]) == [True] * 3
        with news.claims() as mine:
            assert mine.outstanding() == Outstanding(3, 0.0)
            assert len(mine.reclaim()) == 3
            assert mine.commit(["a", "b", "c"]) == [True] * 3


@pytest.mark.slow
def test_claims_are_not_coalesced_and_inserts_still_are(any_server):
    """Many tasks of one client: each item is one task's, whether it inserts or claims."""

    async def crawl() -> None:
        async with AsyncUriFilter.create("news", redis=any_server.url, **PRECISE) as news, news.claims() as mine:
            items = [f"u{number % 50}" for number in range(300)]
            claimed = asyncio.gather(*(mine.claim(item) for item in items))
            inserted = asyncio.gather(*(news.insert(f"i{item}") for item in items))
            assert sum(await claimed) == sum(await inserted) == 50
            assert len(mine.held) == 50
            committed = await asyncio.gather(*(mine.commit([item]) for item in items))
            assert sum(answer for (answer,) in committed) == 50
            assert mine.held == []

    asyncio.run(crawl())


def test_threads_share(make_filter):
    """Threads that share one object get each item once, and each True of a commit once."""
    with make_filter(**PRECISE, shards=3).claims() as mine:
        got: list[str] = []
        final: list[bool] = []

        def crawl() -> None:
            for start in range(0, 600, 20):
                some = mine.unique([f"u{number}" for number in range(start, start + 20)])
                got.extend(some)
                final.extend(mine.commit([*some, f"u{start}"]))

        together([crawl] * 6)
        assert sorted(got) == sorted(f"u{number}" for number in range(600))
        assert sum(final) == 600
        assert mine.held == []


def test_another_event_loop(any_server):
    """Claims of asyncio belong to the loop of their first call."""

    async def begin():
        news = await AsyncUriFilter.create("news", redis=any_server.url, **PRECISE)
        mine = news.claims()
        assert await mine.claim("a") is True
        return mine

    async def go_on(mine) -> None:
        for call in (mine.claim("b"), mine.commit(["a"]), mine.reclaim(), mine.close()):
            with pytest.raises(ValueError, match="these claims belong to another event loop"):
                await call

    mine = asyncio.run(begin())
    asyncio.run(go_on(mine))


def test_closing_while_the_server_is_away(clients, make_server, caplog):
    """It takes no longer than the filter's time for one call and a beat, and a warning says what is left."""
    server = make_server("redis70")
    news = clients.create(
        "news", redis=server.url, timeouts=Timeouts(connect=0.1, reply=0.1, total=0.2), shards=40, **PRECISE
    )
    mine = news.claims()
    assert mine.claim_many(range(400)) == [True] * 400
    server.kill()
    with caplog.at_level(logging.WARNING):
        mine.close()
    assert "what is in flight is free after its lease only" in caplog.text
    server.start()


def lost(proxy, method, *arguments, cut: int = 0):
    """Call a method whose answers are lost, but for the first ``cut`` calls of scripts; return its error."""
    proxy.plan = first(*[Fault.PASS] * cut, *[Fault.CUT_AFTER] * 1000)
    with pytest.raises(AnswerLost) as caught:
        method(*arguments)
    proxy.plan = first()
    return caught.value


@pytest.fixture
def lossy(any_server):
    """A filter of four shards over a proxy, its scripts loaded, and the proxy."""
    settings = {"redis": any_server.url, "shards": 4, "seed": 1} | PRECISE
    quick = Timeouts(connect=10, reply=10, total=0.5)
    with (
        UriFilter.create("news", **settings) as made,
        Proxy(any_server.port) as proxy,
        UriFilter.open("news", redis=proxy.url, timeouts=quick, near_cache=100) as news,
    ):
        with made.claims() as loading:
            loading.claim_many(["l", "m"])
            loading.commit(["l"])
            loading.release(["m"])
            loading.commit([claim.item for claim in loading.reclaim()])
        yield news, proxy


@pytest.mark.parametrize("end", ["release", "commit"])
def test_an_end_that_is_answered_late(lossy, end):
    """The object has claimed the item once more since it was sent: that claim goes on, and is beaten for."""
    news, proxy = lossy
    with news.claims(pauses=False) as mine:
        mine.claim("x")
        method = getattr(mine, end)
        error = lost(proxy, method, ["x"])
        assert [each.item for each in mine.held] == ["x"]
        if end == "release":
            assert [each.item for each in mine.reclaim()] == ["x"]
        else:
            news.forget(["x"])
            assert mine.claim("x") is True
        assert method(["x"], retry=error) == [True]
        assert [each.item for each in mine.held] == ["x"]
        assert mine.commit(["x"]) == [True]
        assert mine.held == []


@pytest.mark.slow
def test_a_retry_distrusts_the_near_cache(lossy):
    """A method that tells ages asks the server about what the near cache had answered."""
    news, proxy = lossy
    assert news.insert("seen") is True
    with news.claims() as mine:
        error = lost(proxy, mine.claim_many, ["seen", "a"])
        assert error.answers == [False, None]
        assert mine.claim_ages(["seen", "a"], retry=error) == [1, 0]


@pytest.mark.slow
def test_payloads_of_items_that_the_near_cache_had_answered(lossy, any_server):
    """They are made once the server is asked about these items, too."""
    news, proxy = lossy
    assert news.insert_many(["seen", "forgotten"]) == [True, True]
    with news.claims() as mine:
        made = []
        items = ["a", "forgotten", "seen"]
        claim = functools.partial(mine.claim_many, payload=lambda item: made.append(item) or [item])
        error = lost(proxy, claim, items)
        assert made == ["a"]
        with UriFilter.open("news", redis=any_server.url) as other:
            other.forget(["forgotten"])
        assert mine.claim_ages(items, retry=error) == [0, 0, 1]
        assert made == ["a", "forgotten", "seen"]
        assert mine.claimed(items) == [Claim("a", ["a"]), Claim("forgotten", ["forgotten"])]


@pytest.mark.slow
def test_a_late_failure_of_a_reclaim(lossy, monkeypatch):
    """It is raised only if nothing was found before; what was found is in flight."""
    news, _ = lossy
    with news.claims() as dead:
        dead.claim_many(range(40))
    perform, sent = driver.perform_step, []

    def failing(step, sender):
        outcomes = perform(step, sender)
        calls = [each for each in getattr(step, "commands", ()) if each[0] == "EVALSHA"]
        reclaims = [each for each in calls if SCRIPTS.get(each[1]) == "reclaim"]
        sent.extend(reclaims)
        return [Unanswered(ConnectionError("lost"))] if reclaims and len(sent) >= fail_from else outcomes

    with news.claims() as mine:
        with monkeypatch.context() as patched:
            patched.setattr(driver, "perform_step", failing)
            fail_from = 2
            found = mine.reclaim()
            assert 0 < len(found) < 40
            assert len(mine.held) == len(found)
            fail_from = 0
            with pytest.raises(AnswerLost):
                mine.reclaim()
        assert mine.outstanding().others == 40 - len(found)  # what the lost call took is to be given back
