"""Ctrl-C and cancellation at any place: nothing that no caller knows of stays in flight, and no True is lost."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest
from support.forked import in_child
from support.interrupts import Interrupt
from support.proxy import Fault, Proxy, first

from urifilter_redis import AnswerLost, Timeouts, UriFilter
from urifilter_redis.bloom.digest import hasher, shards_of
from urifilter_redis.engine import driver, holdings
from urifilter_redis.engine.driver import drive
from urifilter_redis.flows import items as item_flows
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.outcomes import Decided, Decision

# One that comes while a generator is closed reaches nobody, and the call ends as if there had been none.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

ROUND = itertools.count()
PRECISE = {"capacity": 100_000, "error_rate": 1e-9, "shards": 3, "seed": 1}


@pytest.fixture
def news(any_server, monkeypatch):
    """A filter whose calls are cut small: each item goes out in a call, and each call in a window, of its own.

    A call is in doubt for no time at all: this server has answered each before the next is sent.
    """
    monkeypatch.setattr(item_flows, "CALLS_IN_FLIGHT", 1)
    monkeypatch.setattr(holdings, "CALL_LIFE", 0)
    with UriFilter.create("news", redis=any_server.url, **PRECISE) as made:
        yield made


@pytest.fixture
def other(news, any_server):
    """Another client of the filter."""
    with UriFilter.open("news", redis=any_server.url) as made:
        yield made


def fresh() -> list[str]:
    """Return two items for each of three shards that nobody has seen."""
    number, config = next(ROUND), Config.new(Settings(**PRECISE))
    items = [f"{number}/{i}" for i in range(100)]
    shards = shards_of(hasher(config.hash, config.seed)(map(str.encode, items)), 3)
    return [item for shard in range(3) for item in [i for i, s in zip(items, shards, strict=True) if s == shard][:2]]


def claimed(claims) -> list[str]:
    return sorted(claim.item for claim in claims)


def beat(news, mine) -> None:
    """Beat in this thread, everywhere."""
    drive(mine._backend.beat(), news._connector)


def interrupted(at: int, call):
    """Return the answer of a call that is interrupted at that place; None if it was."""
    with Interrupt(at):
        try:
            return call()
        except KeyboardInterrupt:
            return None


def limit_of(call) -> int:
    with Interrupt() as counted:
        call()
    return counted.places


def test_every_place_of_closing(news, other, sample):
    """Closing that is interrupted ends the beats: what was not given back lapses."""
    mine = news.claims()
    mine.claim_many(fresh())
    places = limit_of(mine.close)
    for at in sample(range(1, places + 1), 50, most=250):
        mine = news.claims()
        items = fresh()
        mine.claim_many(items)
        thread = mine._beating
        if interrupted(at, lambda mine=mine: mine.close() or "closed") is None:
            mine.close()
        with pytest.raises(ValueError, match="closed"):
            mine.claim("more")
        other.commit(items)
        thread.stop(5)
        assert not thread.is_alive()


def lost(mine, items, monkeypatch):
    """Claim items; return the error of a call of which only the first answers arrive."""
    perform, sent = driver.perform_step, itertools.count()

    def failing(step, sender):
        outcome = perform(step, sender)
        if next(sent) < 1:
            return outcome
        return [Decided(AnswerLost("lost"), Decision.DIED)] * len(outcome)

    with monkeypatch.context() as patched:
        patched.setattr(driver, "perform_step", failing)
        with pytest.raises(AnswerLost) as caught:
            mine.claim_many(items)
    return caught.value


def test_a_retry_that_is_interrupted(news, other, sample, monkeypatch):
    """The caller keeps what the error had told it; the rest is given back, and a further retry does not offer it."""

    def prepare():
        mine, items = news.claims(lease=3600), fresh()
        error = lost(mine, items, monkeypatch)
        assert 0 < error.answers.count(True) < 6
        return mine, items, error

    with news.claims() as mine:  # so that the script is loaded
        mine.claim("first")
    mine, items, error = prepare()
    places = limit_of(lambda: mine.claim_many(items, retry=error))
    mine.commit(items)
    for at in sample(range(1, places + 1), 50, most=250):
        mine, items, error = prepare()
        known = [item for item, answer in zip(items, error.answers, strict=True) if answer]
        answers = interrupted(at, lambda each=(mine, items, error): each[0].claim_many(each[1], retry=each[2]))
        if answers is None:
            assert claimed(mine.held) == sorted(known), at
            beats(news, mine, monkeypatch)
            assert other.beat(mine.holder) == len(known), at
            answers = mine.claim_many(items, retry=error)
        got = [item for item, answer in zip(items, answers, strict=True) if answer]
        assert set(known) <= set(got), at
        assert claimed(mine.held) == sorted(got), at
        assert other.beat(mine.holder) == len(got), at
        other.commit(items)
        mine.close()


def test_a_forked_child_of_a_thread_that_calls(any_server):
    """A fork while other threads call leaves the child a holder that can claim and close."""
    with UriFilter.create("news", redis=any_server.url, **PRECISE) as news, news.claims() as mine:
        ended = threading.Event()

        def crawl() -> None:
            for number in itertools.count():
                if ended.is_set():
                    return
                mine.claim(f"t{number}")

        thread = threading.Thread(target=crawl)
        thread.start()
        try:
            for number in range(20):
                assert in_child(lambda number=number: [mine.claim(f"c{number}"), mine.close()]) == [True, None]
        finally:
            ended.set()
            thread.join()


@contextlib.contextmanager
def stopped_after(monkeypatch, owner, name):
    """The next call of a method raises KeyboardInterrupt once it is done."""
    method = getattr(owner, name)

    def stopped(*arguments, **more):
        method(*arguments, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, stopped)
        with pytest.raises(KeyboardInterrupt):
            yield


def beats(news, mine, monkeypatch) -> None:
    """Beat twice, as if both were due: the first one compares, the second gives back."""
    with monkeypatch.context() as patched:
        patched.setattr(holdings, "BEATS", 0.0)
        for _ in range(2):
            beat(news, mine)


@pytest.mark.quick
def test_a_commit_that_is_interrupted(news, other, monkeypatch):
    """What the object has is compared with the filter: what others have committed since is not in flight any more."""
    mine, items = news.claims(lease=3600), fresh()
    assert all(mine.claim_many(items))
    with stopped_after(monkeypatch, mine._holdings, "begin"):
        mine.commit(items)
    assert all(other.commit(items))
    beats(news, mine, monkeypatch)
    assert mine.held == []
    mine.close()


@pytest.mark.quick
def test_a_retry_that_is_interrupted_at_its_end(news, other, monkeypatch):
    """What the error told stays in flight; the rest is given back, and no further retry offers it."""
    with news.claims() as mine:  # so that the script is loaded
        mine.claim("warm")
    mine, items = news.claims(lease=3600), fresh()
    error = lost(mine, items, monkeypatch)
    known = [item for item, answer in zip(items, error.answers, strict=True) if answer]
    with stopped_after(monkeypatch, mine._backend.pending, "answered"):
        mine.claim_many(items, retry=error)
    assert claimed(mine.held) == sorted(known)
    beats(news, mine, monkeypatch)
    assert other.beat(mine.holder) == len(known)
    answers = mine.claim_many(items, retry=error)
    assert [item for item, answer in zip(items, answers, strict=True) if answer] == known
    assert claimed(mine.held) == sorted(known)
    mine.close()


@pytest.mark.quick
def test_a_reclaim_whose_reply_is_lost(any_server, news, other):
    """What it may have taken is given back as the claims are closed, and not a lease later."""
    quick = Timeouts(connect=10, reply=10, total=0.3)
    with Proxy(any_server.port) as proxy, UriFilter.open("news", redis=proxy.url, timeouts=quick) as far:
        with other.claims() as dying:
            dying.claim("warm")
        with far.claims() as warm:  # by now the server knows the script
            warm.commit([each.item for each in warm.reclaim()])
        with other.claims() as dying:
            dying.claim("a")
        mine = far.claims(lease=3600)
        proxy.plan = lambda _: Fault.CUT_AFTER
        with pytest.raises(AnswerLost):
            mine.reclaim()
        proxy.plan = first()
        assert mine.held == []
        mine.close()
    with other.claims() as theirs:
        assert claimed(theirs.reclaim()) == ["a"]
