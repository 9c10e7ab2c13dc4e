"""Ctrl-C and cancellation at any place: nothing that no caller knows of stays in flight, and no True is lost."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from support.forked import in_child
from support.interrupts import Interrupt
from support.killer import SCRIPTS

from urifilter_redis import AnswerLost, AsyncUriFilter, UriFilter
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


def test_every_place_of_a_claim(news, other, sample, monkeypatch):
    """What an interrupted claim has taken is given back by the next beat, and by closing; what was in flight stays."""
    with news.claims() as mine:
        items = fresh()
        places = limit_of(lambda: mine.claim_many(items))
        mine.commit(items)
    assert places > 100
    for at in sample(range(1, places + 1), 50, most=250):
        for closes in (True, False):
            mine = news.claims(lease=3600)
            known = f"known/{at}/{closes}"
            mine.claim(known)
            items = [known, *fresh()]
            answers = interrupted(at, lambda mine=mine, items=items: mine.claim_many(items))
            with other.claims() as theirs:
                if answers is not None:
                    assert answers == [False] + [True] * 6
                    mine.commit(items)
                elif closes:
                    mine.close()
                    assert all(theirs.claim_many(items[1:]) + theirs.commit(items)), at
                else:
                    assert claimed(mine.held) == [known]
                    with monkeypatch.context() as patched:
                        patched.setattr(holdings, "BEATS", 0.0)
                        beat(news, mine)
                        beat(news, mine)
                    assert other.beat(mine.holder) == 1, at
                    assert mine.commit([known]) == [True]
                    theirs.claim_many(items)
                    theirs.reclaim()
                    assert claimed(theirs.held) == sorted(items[1:]), at
                    assert all(theirs.commit(items[1:]))
            mine.close()


def test_every_place_of_a_reclaim(news, other, sample, monkeypatch):
    """What an interrupted reclaim has taken is given back by a beat."""

    def dead() -> list[str]:
        items = fresh()
        with other.claims() as dying:
            dying.claim_many(items)
        return items

    def with_some() -> None:
        with news.claims() as mine:
            mine.commit([claim.item for claim in mine.reclaim()])

    dead()
    places = limit_of(with_some)
    for at in sample(range(1, places + 1), 50, most=250):
        items, mine = dead(), news.claims(lease=3600)
        found = interrupted(at, mine.reclaim)
        if found is None:
            assert mine.held == []
            with monkeypatch.context() as patched:
                patched.setattr(holdings, "BEATS", 0.0)
                beat(news, mine)
                beat(news, mine)
            assert other.beat(mine.holder) == 0, at
            with other.claims() as theirs:
                assert claimed(theirs.reclaim()) == sorted(items), at
                theirs.commit(items)
        else:
            assert claimed(found) == sorted(items)
            mine.commit(items)
        mine.close()


@pytest.mark.parametrize("name", ["commit", "release"])
def test_every_place_of_commit_and_release(news, sample, name, monkeypatch):
    """The interrupted call is in ``unresolved``, and all its answers are to be had; the hand is right afterwards."""

    def prepare(mine) -> list[str]:
        items = fresh()
        assert mine.claim_many(items) == [True] * 6
        return items

    with news.claims() as mine:
        items = prepare(mine)
        places = limit_of(lambda: getattr(mine, name)(items))
    for at in sample(range(1, places + 1), 50, most=250):
        mine = news.claims(lease=3600)
        items = prepare(mine)
        method = getattr(mine, name)
        answers = interrupted(at, lambda method=method, items=items: method(items))
        if answers is None:
            lost = mine.unresolved
            assert len(lost) <= 1
            assert all((each.method, f": {name} was interrupted" in str(each)) == (name, True) for each in lost)
            assert news.unresolved == []
            answers = method(items, retry=lost[0]) if lost else method(items)
        assert answers == [True] * 6, at
        assert mine.unresolved == []
        with monkeypatch.context() as patched:
            patched.setattr(holdings, "BEATS", 0.0)
            beat(news, mine)
        assert mine.held == [], at
        assert all(mine._backend.holdings.mark(shard) is not None for shard in range(3)), at
        mine.close()


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
            with monkeypatch.context() as patched:
                patched.setattr(holdings, "BEATS", 0.0)
                beat(news, mine)
                beat(news, mine)
            assert other.beat(mine.holder) == len(known), at
            answers = mine.claim_many(items, retry=error)
        got = [item for item, answer in zip(items, answers, strict=True) if answer]
        assert set(known) <= set(got), at
        assert claimed(mine.held) == sorted(got), at
        assert other.beat(mine.holder) == len(got), at
        other.commit(items)
        mine.close()


@pytest.mark.parametrize("lose", ["waiting", "sent"])
@pytest.mark.parametrize("name", ["claim", "reclaim", "commit", "release"])
def test_a_cancelled_task(any_server, monkeypatch, name, lose):
    """Cancelled before its pipeline is sent or after, a task leaves nothing in flight, and the answers of commit."""
    monkeypatch.setattr(holdings, "CALL_LIFE", 0)

    async def crawl() -> None:
        async with (
            AsyncUriFilter.create("news", redis=any_server.url, **PRECISE) as news,
            AsyncUriFilter.open("news", redis=any_server.url) as other,
        ):
            mine = news.claims(lease=3600)
            if name == "reclaim":
                async with other.claims() as dead:
                    await dead.claim_many(["a", "b"])
            elif name != "claim":
                await mine.claim_many(["a", "b"])
            calls = {
                "claim": lambda: mine.claim_many(["a", "b"]),
                "reclaim": mine.reclaim,
                "commit": lambda: mine.commit(["a", "b"]),
                "release": lambda: mine.release(["a", "b"]),
            }
            with monkeypatch.context() as patched:
                stopper = Stopper(patched, name, after=lose == "sent")
                task = asyncio.create_task(calls[name]())
                await stopper.reached.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            if name in {"commit", "release"}:
                (lost,) = mine.unresolved
                method = getattr(mine, name)
                assert await method(["a", "b"], retry=lost) == [True, True]
            assert mine.held == []
            with monkeypatch.context() as patched:
                patched.setattr(holdings, "BEATS", 0.0)
                for _ in range(2):
                    await news._run(mine._backend.beat())
            assert await other.beat(mine.holder) == 0
            async with other.claims() as theirs:
                await theirs.claim_many(["a", "b"])
                await theirs.reclaim()
                assert claimed(theirs.held) == ([] if name == "commit" else ["a", "b"])
            await mine.close()

    asyncio.run(crawl())


class Stopper:
    """Holds the first pipeline whose script is of a name, before it is sent or after it was answered, for ever."""

    def __init__(self, monkeypatch, name: str, *, after: bool) -> None:
        self.reached = asyncio.Event()
        perform = driver.perform_step_async

        async def held(step, sender):
            commands = getattr(step, "commands", [()])
            wanted = any(each[0] == "EVALSHA" and SCRIPTS.get(each[1]) == name for each in commands if each)
            outcome = await perform(step, sender) if after or not wanted else None
            if wanted:
                self.reached.set()
                await asyncio.Event().wait()
            return outcome

        monkeypatch.setattr(driver, "perform_step_async", held)


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
