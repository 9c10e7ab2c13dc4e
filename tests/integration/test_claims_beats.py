"""Beats: what is in flight stays there while its object lives, and what no caller knows of is given back."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from functools import partial

import pytest
from support.proxy import Fault, Proxy, at_random, first
from support.servers import wait_until
from support.together import together

from urifilter_redis import AnswerLost, Claim, Timeouts, UriFilter
from urifilter_redis.engine import driver, holdings
from urifilter_redis.engine.driver import drive

PRECISE = {"capacity": 10_000, "error_rate": 1e-8}
QUICK = Timeouts(connect=0.2, reply=0.2, total=0.3)

#: Where replies are cut at once, and others may be late.
CUT = Timeouts(connect=10, reply=10, total=0.3)
IN_FLIGHT, HOLDERS, META = (f"urifilter:{{news:0}}:{name}" for name in ("in_flight", "holders", "meta"))


@pytest.fixture
def often(monkeypatch):
    """An object with the shortest lease beats ten times a second."""
    monkeypatch.setattr(holdings, "BEATS", 0.02)


@pytest.fixture
def news(make_filter):
    return make_filter(**PRECISE)


@pytest.fixture
def other(news, any_server):
    """Another client of the filter."""
    with UriFilter.open("news", redis=any_server.url) as made:
        yield made


def beat(news, mine) -> None:
    """Beat in this thread, if it is time."""
    drive(mine._backend.beat(), news._connector)


def lives_until(server) -> float:
    """Return until when the last holder of shard 0 lives, server ms; 0: there is none."""
    with server.client() as admin:
        return max((score for _, score in admin.zrange(HOLDERS, 0, -1, withscores=True)), default=0)


def beating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "urifilter-beat"]


@pytest.mark.usefixtures("often")
def test_slow_work_keeps_its_items(clients, clocked):
    """Two leases pass, and the item is still in flight; that of an object that does not beat has lapsed."""
    server, clock = clocked
    news = clients.create("news", redis=server.url, **PRECISE)
    idle = news.claims(lease=5, beats=False)
    with news.claims(lease=5) as mine, news.claims(lease=5) as theirs:
        assert mine.claim("a") is True
        assert idle.claim("b") is True
        for ahead in (4, 8):
            before = lives_until(server)
            clock.ahead(ahead)
            clients.wait_until(lambda at=before: lives_until(server) >= at + 3900, "there was no beat")
        assert theirs.claim_many(["a"]) == [False]
        assert theirs.reclaim() == [Claim("b", "b", lapses=1)]
        assert mine.commit(["a"]) == [True]


def test_beats_end_with_their_filter(clients, any_server):
    """Also those of an object that nobody closes; a later call does not begin them again."""
    before = beating()
    news = clients.create("news", redis=any_server.url, **PRECISE)
    mine = news.claims()
    mine.claim("a")
    assert clients.tasks or len(beating()) > len(before)
    news.close()
    with pytest.raises(ValueError, match="filter 'news' is closed"):
        mine.claim("b")
    assert clients.tasks == []
    assert [each for each in beating() if each not in before] == []


@pytest.mark.usefixtures("often")
def test_a_late_beat_revives(clients, clocked):
    """A holder that was dead, and from which nobody took anything, has it again."""
    server, clock = clocked
    news = clients.create("news", redis=server.url, **PRECISE)
    with news.claims(lease=5) as mine, news.claims(lease=5) as theirs:
        mine.claim("a")
        before = lives_until(server)
        clock.ahead(60)
        clients.wait_until(lambda: lives_until(server) > before + 50_000, "there was no beat")
        assert theirs.reclaim() == []
        assert mine.held == [Claim("a", "a")]


def test_only_silent_shards_are_beaten(any_server, monkeypatch):
    """A beat goes to the shards that have something in flight and heard nothing within a third of the lease."""
    with UriFilter.create("news", redis=any_server.url, **PRECISE, shards=8) as news, any_server.client() as admin:
        mine = news.claims(lease=3600)
        news.beat(mine.holder)  # so that the script is loaded
        items = ["a", "b", "c"]
        mine.claim_many(items)
        used = [number for number, claims in mine._backend.holdings.held.items() if claims]

        def beats() -> int:
            admin.config_resetstat()
            beat(news, mine)
            return admin.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]

        assert beats() == 0
        monkeypatch.setattr(holdings, "BEATS", 0.0)
        assert beats() == len(used) < 8
        monkeypatch.setattr(holdings, "BEATS", 1 / 3)
        assert beats() == 0
        mine.commit(items)
        monkeypatch.setattr(holdings, "BEATS", 0.0)
        assert beats() == 0
        mine.close()


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_the_server_goes_away(clients, make_server, caplog):
    """Beats survive it; each outage is logged once, however many beats fail."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    news = clients.create("news", redis=server.url, timeouts=QUICK, **PRECISE)

    def told() -> int:
        return sum("a beat failed" in record.message for record in caplog.records)

    with caplog.at_level(logging.WARNING), news.claims(lease=5) as mine:
        mine.claim("a")
        for outage in (1, 2):
            server.kill()
            clients.wait_until(lambda count=outage: told() == count, "no failure is logged")
            clients.let_pass(1)
            assert told() == outage
            server.start()
            before = lives_until(server)
            clients.wait_until(lambda at=before: lives_until(server) > at, "there was no beat")
            clients.let_pass(0.2)
        assert mine.commit(["a"]) == [True]


@pytest.mark.sampled
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("trouble", ["restoring", "gone"])
def test_a_filter_in_trouble(clients, any_server, caplog, trouble):
    """Beats go on, are logged once, and count again once the filter is well."""
    news = clients.create("news", redis=any_server.url, timeouts=QUICK, **PRECISE)
    with caplog.at_level(logging.WARNING), news.claims(lease=5) as mine, any_server.client() as admin:
        mine.claim("a")
        before = lives_until(any_server)
        if trouble == "restoring":
            phase = admin.hget(META, "phase")
            admin.hset(META, "phase", "restoring")
        else:
            admin.rename(META, "elsewhere")
        clients.wait_until(lambda: "a beat failed" in caplog.text, "no failure is logged")
        clients.let_pass(0.5)
        assert caplog.text.count("a beat failed") == 1
        held_until = lives_until(any_server)
        if trouble == "restoring":
            admin.hset(META, "phase", phase)
        else:
            admin.rename("elsewhere", META)
        clients.wait_until(lambda: lives_until(any_server) > held_until, "there was no beat")
        assert held_until >= before
        assert mine.commit(["a"]) == [True]


@pytest.mark.usefixtures("often")
def test_a_beat_drops_what_is_gone(clients, clocked):
    """What others took, or committed, is in ``held`` no longer after the next beat."""
    server, clock = clocked
    news = clients.create("news", redis=server.url, **PRECISE)
    with UriFilter.open("news", redis=server.url) as other, other.claims() as theirs:
        mine = news.claims(lease=5)
        mine.claim_many(["a", "b", "c"])
        other.commit(["a"])
        clients.wait_until(lambda: [claim.item for claim in mine.held] == ["b", "c"], "the hand is not mended")
        clock.ahead(6)  # between two beats others may take what is left, or a beat revives it
        taken = theirs.reclaim()
        clients.wait_until(lambda: len(mine.held) == 2 - len(taken), "the hand is not mended")
        mine.close()


@pytest.mark.usefixtures("often")
def test_a_beat_gives_back_what_is_not_known(clients, any_server):
    """What the server has in this holder's hands, and the object does not know, is released."""
    news = clients.create("news", redis=any_server.url, **PRECISE)
    with UriFilter.open("news", redis=any_server.url) as other, news.claims(lease=5) as mine:
        mine.claim("a")
        lost = other.claims(holder=mine.holder, beats=False)
        assert lost.claim_many(["b", "c"]) == [True, True]
        with other.claims() as theirs:
            clients.wait_until(lambda: theirs.outstanding().due is not None and news.beat(mine.holder) == 1, "no")
            assert sorted(claim.item for claim in theirs.reclaim()) == ["b", "c"]
        assert mine.held == [Claim("a", "a")]
        assert mine.commit(["a"]) == [True]


def test_counts_tell_nothing_while_a_call_is_under_way(news, other, monkeypatch):
    """Neither before the beat, nor between its sending and its reply, nor while the hands are read."""
    mine = news.claims(lease=5)
    books = mine._backend.holdings
    mine.claim("a")
    mine._beating.stop(5)
    other.claims(holder=mine.holder, beats=False).claim("b")
    monkeypatch.setattr(holdings, "BEATS", 0.0)

    books.begin(0, "a call")
    beat(news, mine)
    books.end(0, "a call", answered=True, in_doubt=False)
    assert other.beat(mine.holder) == 2

    perform = driver.perform_step
    for number in range(1, 3):
        sent = []

        def disturbed(step, sender, number=number, sent=sent):
            sent.append(step)
            outcome = perform(step, sender)
            if len(sent) == number:
                books.begin(0, "another")
                books.end(0, "another", answered=True, in_doubt=False)
            return outcome

        drive(mine._backend.beat(), news._connector, perform=disturbed)
        assert len(sent) == number
        assert other.beat(mine.holder) == 2
    beat(news, mine)
    assert other.beat(mine.holder) == 1
    assert mine.held == [Claim("a", "a")]
    mine.close()


@pytest.fixture
def lossy(any_server, monkeypatch):
    """A filter over a proxy that may lose replies, the proxy, and the filter itself; calls live for a second."""
    monkeypatch.setattr(holdings, "CALL_LIFE", 1000)
    UriFilter.create("news", redis=any_server.url, **PRECISE).close()
    with (
        Proxy(any_server.port) as proxy,
        UriFilter.open("news", redis=proxy.url, timeouts=CUT) as news,
        UriFilter.open("news", redis=any_server.url) as other,
    ):
        yield news, proxy, other


@pytest.mark.slow
def test_a_call_whose_answer_is_lost(lossy, monkeypatch):
    """It is under way until its deadline: until then a retry gets the answers, after it a beat gives the items back."""
    news, proxy, other = lossy
    mine = news.claims(lease=60)
    mine.claim("known")
    mine._beating.stop(5)
    monkeypatch.setattr(holdings, "BEATS", 0.0)

    def lost(items):
        proxy.plan = lambda _: Fault.CUT_AFTER
        with pytest.raises(AnswerLost) as caught:
            mine.claim_many(["known", *items])
        assert caught.value.answers == [None] * 3
        proxy.plan = first()
        beat(news, mine)
        assert mine.held[0] == Claim("known", "known")
        return caught.value

    error = lost(["a", "b"])
    assert mine.claim_ages(["known", "a", "b"], retry=error) == [-1, 0, 0]
    threading.Event().wait(1.1)
    beat(news, mine)
    assert sorted(claim.item for claim in mine.held) == ["a", "b", "known"]

    error = lost(["c", "d"])
    assert other.beat(mine.holder) == 5
    threading.Event().wait(1.1)
    beat(news, mine)
    assert other.beat(mine.holder) == 3
    with other.claims() as theirs:
        assert sorted(claim.item for claim in theirs.reclaim()) == ["c", "d"]
    assert mine.claim_ages(["known", "c", "d"], retry=error) == [-1, -1, -1]
    mine.close()


def test_a_lost_reclaim_of_as_many_as_others_committed(lossy, monkeypatch):
    """The counts are equal, and what was reclaimed is given back all the same."""
    news, proxy, other = lossy
    with other.claims() as theirs, news.claims(lease=60, pauses=False) as mine:
        mine.claim("known")
        mine._beating.stop(5)
        monkeypatch.setattr(holdings, "BEATS", 0.0)
        theirs.claim("unknown")
        for _ in theirs.release(["unknown"]), theirs.reclaim():  # which loads the script
            theirs.release(["unknown"])
        proxy.plan = lambda _: Fault.CUT_AFTER
        with pytest.raises(AnswerLost):
            mine.reclaim()
        proxy.plan = first()
        assert other.commit(["known"]) == [True]
        assert other.beat(mine.holder) == 1 == len(mine.held)
        threading.Event().wait(1.1)
        beat(news, mine)
        assert mine.held == []
        assert [claim.item for claim in theirs.reclaim()] == ["unknown"]


@pytest.mark.usefixtures("often")
def test_failed_calls_are_no_beats(clients, clocked):
    """A holder whose calls are all refused still beats, for the scripts refuse before they beat."""
    server, clock = clocked
    news = clients.create("news", redis=server.url, timeouts=QUICK, **PRECISE)
    with news.claims(lease=5) as mine:
        mine.claim("a")
        server.ask("config_set", "maxmemory", 1)
        before = lives_until(server)
        clock.ahead(4)

        def beaten() -> bool:
            with pytest.raises(Exception, match="memory is full"):
                mine.claim("b")
            return lives_until(server) >= before + 3900

        clients.wait_until(beaten, "there was no beat")
        server.ask("config_set", "maxmemory", 0)


@pytest.mark.usefixtures("often")
def test_the_thread_ends_with_its_object(news):
    """With its closing, and with its collection; two threads that began at once become one."""
    before = len(beating())
    mine, theirs = news.claims(lease=5), news.claims(lease=5)
    mine.claim("a")
    theirs.claim("b")
    assert len(beating()) == before + 2
    mine.close()
    assert len(beating()) == before + 1
    del theirs
    gc.collect()
    wait_until(lambda: len(beating()) == before, "the thread goes on")

    ours = news.claims(lease=5)
    together(partial(ours.claim, f"u{number}") for number in range(20))
    wait_until(lambda: len(beating()) == before + 1, "two threads beat")
    ours.close()
    wait_until(lambda: len(beating()) == before, "the thread goes on")


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["falls off the end", "sys.exit(3)", "raise ValueError", "a daemon thread claims"])
def test_a_thread_keeps_no_interpreter_from_ending(news, any_server, way):
    """However a program ends, it ends at once, and without a word about threads."""
    source = f"""
import sys, threading
from urifilter_redis import UriFilter
from urifilter_redis.engine import holdings
holdings.BEATS = 0.0002
mine = UriFilter.open("news", redis={any_server.url!r}).claims(lease=5)
assert mine.claim({way!r})
def crawl():
    for number in range(10**9):
        mine.claim(f"{way}/{{number}}")
if {way!r} == "a daemon thread claims":
    threading.Thread(target=crawl, daemon=True).start()
threading.Event().wait(0.3)
{way if "(" in way or "raise" in way else ""}
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=30)
    assert done.returncode == {"sys.exit(3)": 3, "raise ValueError": 1}.get(way, 0)
    assert (done.stderr == "") is (way != "raise ValueError")


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_beats_over_a_lossy_way(any_server):
    """Lost, late and repeated calls and beats: each item is final once, and nothing stays in flight."""
    UriFilter.create("news", redis=any_server.url, **PRECISE, shards=3).close()
    with (
        Proxy(any_server.port, at_random(7, 0.3), late_after=5) as proxy,
        UriFilter.open("news", redis=proxy.url) as news,
    ):
        final = 0
        with news.claims(lease=5) as mine:
            for start in range(0, 300, 10):
                some = mine.unique(range(start, start + 10))
                assert len(some) == 10
                final += sum(mine.commit(some))
            proxy.plan = first()
            proxy.release()
        assert final == 300
        with any_server.client() as admin:
            assert [admin.zcard(key) for key in admin.keys("*:in_flight")] == []
