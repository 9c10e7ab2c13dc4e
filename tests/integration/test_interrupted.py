"""Ctrl-C at any place of a call: what was sent is in ``unresolved``, and every answer is to be had, once.

Of claims nothing that no caller knows of stays in flight.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
from functools import partial

import pytest
from support.forked import in_child
from support.interrupts import Interrupt
from support.proxy import Fault, Proxy, first

from urifilter_redis import AnswerLost, Timeouts, UriFilter
from urifilter_redis.bloom.digest import hasher, shards_of
from urifilter_redis.engine import batch, driver, holdings
from urifilter_redis.engine.driver import drive
from urifilter_redis.flows import items as item_flows
from urifilter_redis.protocol.config import Config, Settings
from urifilter_redis.protocol.outcomes import Decided, Decision

# One that comes while a generator is closed reaches nobody, and the call ends as if there had been none.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

ROUND = itertools.count()
THREE = {"capacity": 100_000, "error_rate": 1e-9, "shards": 3, "seed": 1}


@pytest.fixture
def news(any_server, monkeypatch):
    """A filter whose calls are cut small: a call for each shard and part of the items, and a window for each call.

    It may have many connections: Ctrl-C at the step that hands one over costs that one, and here each step is hit.
    """
    monkeypatch.setattr(item_flows, "CALLS_IN_FLIGHT", 1)
    monkeypatch.setattr(item_flows, "PART", 4)
    monkeypatch.setattr(batch, "PART_OF_A_SHARD", 1)
    with UriFilter.create("news", redis=any_server.url, connections=1000, **THREE) as made:
        yield made


def fresh() -> list[str]:
    """Return items for each of three shards that nobody has seen."""
    number = next(ROUND)
    return [f"{number}/{i}" for i in range(12)]


def limit_of(call, **more) -> int:
    """Return how many places a call has."""
    with Interrupt(**more) as counted:
        call()
    return counted.places


def interrupted(at: int, call, **more):
    """Return the answer of a call that is interrupted at that place; None if it was."""
    with Interrupt(at, **more):
        try:
            return call()
        except KeyboardInterrupt:
            return None


def resolved(made, method, items):
    """Return the answers of an interrupted call: those of ``unresolved``; of what was not sent, those of a new call."""
    lost = made.unresolved
    assert len(lost) <= 1
    answers = method(items, retry=lost[0]) if lost else method(items)
    assert made.unresolved == []
    return answers


def test_every_place_of_a_retry(news, sample):
    """A call that was interrupted, and is interrupted again as its answers are asked for, is there still."""

    def lost(items):
        with Interrupt(300), pytest.raises(KeyboardInterrupt):
            news.insert_many(items)
        (error,) = news.unresolved
        assert error.method == "insert"
        return error

    items = fresh()
    error = lost(items)
    places = limit_of(partial(news.insert_many, items, retry=error))
    for at in sample(range(1, places + 1), 50):
        items = fresh()
        answers = interrupted(at, partial(news.insert_ages, items, retry=lost(items)))
        if answers is None:
            (again,) = news.unresolved
            answers = news.insert_ages(items, retry=again)
        assert answers == [0] * len(items), at
        assert news.unresolved == []


def test_every_place_of_one_insert(news, sample):
    """``insert`` likewise."""
    places = limit_of(partial(news.insert, *fresh()[:1]))
    assert places > 50
    for at in sample(range(1, places + 1), 50):
        item, *_ = fresh()
        answer = interrupted(at, partial(news.insert, item))
        assert (resolved(news, news.insert, item) if answer is None else answer) is True, at
        assert news.unresolved == []


@pytest.mark.parametrize(
    "packages", ["urifilter_redis/client.py", pytest.param("urifilter_redis", marks=pytest.mark.nightly)]
)
def test_every_place_of_a_stream(news, monkeypatch, packages):
    """``iter_unique``: items handed out, in ``unresolved``, and asked about anew are all items, once each."""
    monkeypatch.setattr(item_flows, "WINDOW", 8)
    places = limit_of(lambda: list(news.iter_unique(fresh())), packages=(packages,))
    for at in range(1, places + 1):
        items, got = fresh(), []
        with Interrupt(at, (packages,)):
            try:
                for item in news.iter_unique(items):
                    got.append(item)  # noqa: PERF402 - one at a time, as a crawler takes them
            except KeyboardInterrupt:
                pass
        for lost in news.unresolved:
            if lost.batch.command == "forget":
                news.forget(lost.items, retry=lost)
            else:
                got += news.unique(lost.items, retry=lost)
        got += news.iter_unique(items)
        assert sorted(got) == sorted(items), at
        assert news.unresolved == []


def test_places_in_the_connection(news, sample):
    """Nor does one in the middle of sending and receiving, in redis-py, lose an answer."""
    in_redis = {"packages": ("redis",)}
    places = limit_of(partial(news.insert_many, fresh()), **in_redis)
    for at in sample(range(1, places + 1, 7), 20):
        items = fresh()
        answers = interrupted(at, partial(news.insert_ages, items), **in_redis)
        assert (resolved(news, news.insert_ages, items) if answers is None else answers) == [0] * 12


class Tick(BaseException):
    """What a handler of a signal raises; it is no error of the library, like KeyboardInterrupt."""


def interrupted_by_signals(insert, times: int) -> list[str]:
    """Insert new items, each call with a signal at a moment of its own, until so many have come; return what was lost.

    ``insert`` takes an item, and ``retry=``.
    """
    news, lost, came, dice = insert.__self__, [], 0, random.Random(7)

    def handler(*_):
        raise Tick

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for number in itertools.count():
            item, told = f"{insert.__name__} {number}", None
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 1.5e-3))
                told = insert(item)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Tick:
                came += 1
                if told is None and (errors := news.unresolved):
                    told = insert(item, retry=errors[0])
                elif told is None and news.contains(item):  # it was inserted, and nobody was told
                    lost.append(item)
                assert news.unresolved == []
                assert told in {None, True}
            if came >= times:
                return lost
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_no_answer_is_lost_to_a_signal(server):
    """Python looks for signals at places of its own: none lies between the end of a call and what its caller has."""
    with UriFilter.create("news", redis=server.url, capacity=1_000_000, error_rate=1e-9) as news:
        assert interrupted_by_signals(news.insert, 3000) == []


@pytest.fixture
def queue(any_server, monkeypatch):
    """A filter whose calls about claims are cut small: each item goes out in a call, each call in a window, of its own.

    A call is in doubt for no time at all: this server has answered each before the next is sent.
    """
    monkeypatch.setattr(item_flows, "CALLS_IN_FLIGHT", 1)
    monkeypatch.setattr(holdings, "CALL_LIFE", 0)
    with UriFilter.create("news", redis=any_server.url, **THREE) as made:
        yield made


@pytest.fixture
def other(queue, any_server):
    """Another client of the filter."""
    with UriFilter.open("news", redis=any_server.url) as made:
        yield made


def names_of(claims) -> list[str]:
    return sorted(claim.item for claim in claims)


def in_each_shard() -> list[str]:
    """Return two items for each of three shards that nobody has seen."""
    number, config = next(ROUND), Config.new(Settings(**THREE))
    items = [f"{number}/{i}" for i in range(100)]
    shards = shards_of(hasher(config.hash, config.seed)(map(str.encode, items)), 3)
    return [item for shard in range(3) for item in [i for i, s in zip(items, shards, strict=True) if s == shard][:2]]


def test_every_place_of_closing(queue, other, sample):
    """Closing that is interrupted ends the beats: what was not given back lapses."""
    mine = queue.claims()
    mine.claim_many(in_each_shard())
    places = limit_of(mine.close)
    for at in sample(range(1, places + 1), 50, most=250):
        mine = queue.claims()
        items = in_each_shard()
        mine.claim_many(items)
        thread = mine._beating
        if interrupted(at, lambda mine=mine: mine.close() or "closed") is None:
            mine.close()
        with pytest.raises(ValueError, match="closed"):
            mine.claim("more")
        other.commit(items)
        thread.stop(5)
        assert not thread.is_alive()


def lost_after_the_first(mine, items, monkeypatch):
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


def test_every_place_of_a_retry_of_a_claim(queue, other, sample, monkeypatch):
    """The caller keeps what the error had told it; the rest is given back, and a further retry does not offer it."""

    def prepare():
        mine, items = queue.claims(lease=3600), in_each_shard()
        error = lost_after_the_first(mine, items, monkeypatch)
        assert 0 < error.answers.count(True) < 6
        return mine, items, error

    with queue.claims() as mine:  # so that the script is loaded
        mine.claim("first")
    mine, items, error = prepare()
    places = limit_of(lambda: mine.claim_many(items, retry=error))
    mine.commit(items)
    for at in sample(range(1, places + 1), 50, most=250):
        mine, items, error = prepare()
        known = [item for item, answer in zip(items, error.answers, strict=True) if answer]
        answers = interrupted(at, lambda each=(mine, items, error): each[0].claim_many(each[1], retry=each[2]))
        if answers is None:
            assert names_of(mine.held) == sorted(known), at
            beats(queue, mine, monkeypatch)
            assert other.beat(mine.holder) == len(known), at
            answers = mine.claim_many(items, retry=error)
        got = [item for item, answer in zip(items, answers, strict=True) if answer]
        assert set(known) <= set(got), at
        assert names_of(mine.held) == sorted(got), at
        assert other.beat(mine.holder) == len(got), at
        other.commit(items)
        mine.close()


class Stopped(Exception):
    """As task queues raise it from the handler of a signal."""


@pytest.mark.quick
@pytest.mark.parametrize("command", ["claim", "reclaim"])
def test_an_exception_of_a_handler(queue, other, monkeypatch, command):
    """Whatever its class: what no caller was told of is given back, as after Ctrl-C."""
    perform, items = driver.perform_step, in_each_shard()
    if command == "reclaim":
        with other.claims() as theirs:
            theirs.claim_many(items)
    for stop in range(1, 6):
        mine, sent = queue.claims(lease=3600), itertools.count()

        def stopped(step, sender, *, sent=sent, stop=stop):
            outcome = perform(step, sender)
            if next(sent) == stop:
                raise Stopped
            return outcome

        with monkeypatch.context() as patched:
            patched.setattr(driver, "perform_step", stopped)
            try:
                mine.claim_many(items) if command == "claim" else mine.reclaim(6)
                break
            except Stopped:
                pass
        beats(queue, mine, monkeypatch)
        assert (mine.held, mine.unresolved, other.beat(mine.holder)) == ([], [], 0)
        mine.close()
    assert stop > 2


def test_every_place_leaves_the_only_connection(server):
    """A place in the pool that Ctrl-C took would be missing for ever."""
    with UriFilter.create("news", redis=server.url, connections=1, timeouts=Timeouts(connect=1), **THREE) as news:
        calls = {"events": ("call",)}
        for at in range(1, 1 + limit_of(partial(news.insert, *fresh()[:1]), **calls)):
            item, *_ = fresh()
            answer = interrupted(at, partial(news.insert, item), **calls)
            assert (resolved(news, news.insert, item) if answer is None else answer) is True, at


def test_a_forked_child_of_a_thread_that_calls(any_server):
    """A fork while other threads call leaves the child a holder that can claim and close."""
    with UriFilter.create("news", redis=any_server.url, **THREE) as queue, queue.claims() as mine:
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


def beats(queue, mine, monkeypatch) -> None:
    """Beat twice, as if both were due: the first one compares, the second gives back."""
    with monkeypatch.context() as patched:
        patched.setattr(holdings, "BEATS", 0.0)
        for _ in range(2):
            drive(mine._backend.beat(), queue._connector)


@pytest.mark.quick
def test_a_commit_that_is_interrupted(queue, other, monkeypatch):
    """What the object has is compared with the filter: what others have committed since is not in flight any more."""
    mine, items = queue.claims(lease=3600), in_each_shard()
    assert all(mine.claim_many(items))
    with stopped_after(monkeypatch, mine._holdings, "begin"):
        mine.commit(items)
    assert all(other.commit(items))
    beats(queue, mine, monkeypatch)
    assert mine.held == []
    mine.close()


@pytest.mark.quick
def test_a_retry_that_is_interrupted_at_its_end(queue, other, monkeypatch):
    """What the error told stays in flight; the rest is given back, and no further retry offers it."""
    with queue.claims() as mine:  # so that the script is loaded
        mine.claim("warm")
    mine, items = queue.claims(lease=3600), in_each_shard()
    error = lost_after_the_first(mine, items, monkeypatch)
    known = [item for item, answer in zip(items, error.answers, strict=True) if answer]
    with stopped_after(monkeypatch, mine._backend.pending, "answered"):
        mine.claim_many(items, retry=error)
    assert names_of(mine.held) == sorted(known)
    beats(queue, mine, monkeypatch)
    assert other.beat(mine.holder) == len(known)
    answers = mine.claim_many(items, retry=error)
    assert [item for item, answer in zip(items, answers, strict=True) if answer] == known
    assert names_of(mine.held) == sorted(known)
    mine.close()


@pytest.mark.quick
def test_a_reclaim_whose_reply_is_lost(any_server, queue, other):
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
        assert names_of(theirs.reclaim()) == ["a"]
