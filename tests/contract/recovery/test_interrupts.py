"""Ctrl-C, or the cancellation of a task, loses no answer, and leaves nothing in flight of which no caller knows."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from support.in_flight import let_lapse
from support.interrupts import Interrupt
from support.recovering import CALLS, COMMANDS, ITEMS, LEASE, WHEN, each_of
from support.surfaces import SDK

from urifilter_redis.engine import batch, holdings
from urifilter_redis.flows import items as item_flows

ROUND = itertools.count()

#: Calls whose answers are to be had; what an interrupted claim took is given back.
ENDING = [each for each in COMMANDS if each.command != "claim"]


def resolved(client, call, items):
    """Return the answers of an interrupted call: those of ``unresolved``; of what was not sent, those of a new call."""
    owner = client.mine if call.of_claims else client.news
    lost = owner.unresolved
    assert len(lost) <= 1
    answers = call.of(client)(items, retry=lost[0]) if lost else call.of(client)(items)
    assert owner.unresolved == []
    return answers


@each_of(COMMANDS)
def test_a_call_that_hangs_can_be_interrupted(client, call):
    call.prepare(client)
    client.interrupt_hanging(call.of(client), ITEMS)
    assert client.news.contains_many(["next"]) == [False]
    if call.command != "claim":
        assert resolved(client, call, ITEMS) == call.told(ITEMS)


@pytest.mark.parametrize("at", [2, 3])
@each_of(ENDING)
@pytest.mark.parametrize("client", SDK, indirect=True)
def test_a_call_of_several_requests_is_interrupted_at_any_of_them(client, call, at, monkeypatch):
    call.prepare(client)
    assert client.interrupt(monkeypatch, call.of(client), ITEMS, at=at)
    owner = client.mine if call.of_claims else client.news
    (error,) = owner.unresolved
    assert error.answers == [True] * 4 * (at - 1) + [None] * (12 - 4 * (at - 1))
    assert resolved(client, call, ITEMS) == call.told(ITEMS)


def beat(mine, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(holdings, "BEATS", 0.0)  # each shard is due
        mine._beat_once()


@pytest.fixture
def no_doubt(monkeypatch):
    """A call is in doubt for no time: this server has answered before a call ends."""
    monkeypatch.setattr(holdings, "CALL_LIFE", 0)


@pytest.mark.usefixtures("no_doubt")
@pytest.mark.parametrize("sent", [False, True], ids=WHEN)
@pytest.mark.parametrize("name", ["claim_many", "reclaim"])
def test_what_an_interrupted_claim_took_is_given_back_and_the_rest_stays(
    client, news, any_server, name, sent, monkeypatch
):
    items, call = claiming(client.mine, name, news)
    assert client.interrupt(monkeypatch, call, sent=sent)
    only_the_known_is_in_flight(client, client.mine, items, news, any_server, monkeypatch)


def claiming(mine, name: str, news):
    """Claim "known"; return items that nobody has, and the call that takes them."""
    items = [f"{next(ROUND)}/{item}" for item in ITEMS]
    assert mine.claim("known") is True
    if name == "claim_many":
        return items, partial(mine.claim_many, items)
    with news.claims() as dead:
        dead.claim_many(items)
    return items, mine.reclaim


def only_the_known_is_in_flight(client, mine, items, news, any_server, monkeypatch) -> None:
    """After its beats ``mine`` has one item, and another gets the others; of the service when a lease is over."""
    beat(mine, monkeypatch)
    beat(mine, monkeypatch)
    assert [claim.item for claim in mine.held] == ["known"]
    others = {each.holder for each in news.in_flight() if each.item in items}
    assert client.is_sdk or not others
    with any_server.client() as admin:
        for holder in others:
            let_lapse(news, admin, bytes.fromhex(holder))
    assert mine.release(["known"]) == [True]
    take_all(items, news)


def take_all(items, news) -> None:
    with news.claims() as theirs:
        theirs.claim_many(["known", *items])
        theirs.reclaim()
        assert sorted(claim.item for claim in theirs.held) == sorted(["known", *items])
        theirs.commit(items)
    news.forget(["known"])


# At each line and call of the library, or each round of the event loop: these are slow.


@pytest.fixture
def small(client, monkeypatch):
    """Calls are cut small: one for each item, and a window for each call. An interruption may cost a connection."""
    monkeypatch.setattr(item_flows, "CALLS_IN_FLIGHT", 1)
    monkeypatch.setattr(item_flows, "PART", 4)
    monkeypatch.setattr(batch, "PART_OF_A_SHARD", 1)


def fresh(client, call) -> list[str]:
    items = [f"{next(ROUND)}/{item}" for item in ITEMS]
    call.prepare(client, items)
    return items


@pytest.mark.slow
@pytest.mark.usefixtures("small", "no_doubt")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("client", ["blocking", "sdk"], indirect=True)
@each_of([each for each in CALLS if each.command != "claim"])
def test_a_call_can_be_interrupted_at_each_line(client, call, sample, monkeypatch):
    """One interruption that comes while a generator is closed reaches nobody, and the call ends as if it had not."""
    items = fresh(client, call)
    with Interrupt() as counted:
        call.of(client)(items)
    assert counted.places > 100
    for at in sample(range(1, counted.places + 1), 50):
        items = fresh(client, call)
        with Interrupt(at):
            try:
                answers = call.of(client)(items)
            except KeyboardInterrupt:
                answers = None
        if answers is None:
            answers = resolved(client, call, items)
        assert answers == call.told(items), at
        beat(client.mine, monkeypatch)
        assert client.news.unresolved == client.mine.unresolved == client.mine.held == [], at


@pytest.mark.slow
@pytest.mark.usefixtures("small", "no_doubt")
@pytest.mark.parametrize("client", ["asyncio", "asyncio-sdk"], indirect=True)
@each_of([each for each in CALLS if each.command != "claim"])
def test_a_task_can_be_cancelled_in_each_round_of_its_loop(client, call, sample, monkeypatch):
    cancelled = 0
    for rounds in sample(range(120), 20):
        items = fresh(client, call)
        answers = client.cancel_after(rounds, call.of(client), items)
        if answers is None:
            cancelled += 1
            answers = resolved(client, call, items)
        assert answers == call.told(items), rounds
        beat(client.mine, monkeypatch)
        assert client.news.unresolved == client.mine.unresolved == client.mine.held == [], rounds
    assert cancelled > 0


@pytest.mark.slow
@pytest.mark.usefixtures("small", "no_doubt")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("client", "ends"), [("blocking", "beat"), ("blocking", "close"), ("sdk", "beat")], indirect=["client"]
)
@pytest.mark.parametrize("name", ["claim_many", "reclaim"])
def test_what_a_claim_interrupted_at_each_line_took_is_given_back(
    client, ends, news, any_server, name, sample, monkeypatch
):
    mine = client.news.claims(LEASE)
    items, call = claiming(mine, name, news)
    with Interrupt() as counted:
        call()
    mine.commit(["known", *items])
    news.forget(["known"])
    for at in sample(range(1, counted.places + 1), 50, most=250):
        mine = client.news.claims(LEASE)
        items, call = claiming(mine, name, news)
        with Interrupt(at):
            try:
                told = call()
            except KeyboardInterrupt:
                told = None
        if told is not None:
            mine.release(items)
        if ends == "close":
            mine.close()
            take_all(items, news)
        else:
            only_the_known_is_in_flight(client, mine, items, news, any_server, monkeypatch)
            mine.close()
