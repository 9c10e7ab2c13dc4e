"""Ctrl-C at any place of a call: what was sent is in ``unresolved``, and every answer is to be had, once."""

from __future__ import annotations

import itertools
import random
import signal

import pytest
from support.interrupts import Interrupt

from urifilter_redis import UriFilter
from urifilter_redis.engine import batch
from urifilter_redis.flows import items as item_flows

# One that comes while a generator is closed reaches nobody, and the call ends as if there had been none.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

ROUND = itertools.count()


@pytest.fixture
def news(any_server, monkeypatch):
    """A filter whose calls are cut small: a call for each shard and part of the items, and a window for each call.

    It may have many connections: Ctrl-C at the step that hands one over costs that one, and here each step is hit.
    """
    monkeypatch.setattr(item_flows, "CALLS_IN_FLIGHT", 1)
    monkeypatch.setattr(item_flows, "PART", 4)
    monkeypatch.setattr(batch, "PART_OF_A_SHARD", 1)
    options = {"capacity": 100_000, "error_rate": 1e-9, "shards": 3, "connections": 1000}
    with UriFilter.create("news", redis=any_server.url, **options) as made:
        yield made


def fresh() -> list[str]:
    """Return items for each of three shards that nobody has seen."""
    number = next(ROUND)
    return [f"{number}/{i}" for i in range(12)]


def resolved(made, method, items):
    """Return the answers of an interrupted call: those of ``unresolved``; of what was not sent, those of a new call."""
    lost = made.unresolved
    assert len(lost) <= 1
    answers = method(items, retry=lost[0]) if lost else method(items)
    assert made.unresolved == []
    return answers


def interrupted_everywhere(news, method, prepare, expected, sample) -> int:
    """Interrupt a method at each place in turn; return how many there are."""
    with Interrupt() as counted:
        method(prepare())
    for at in sample(range(1, counted.places + 1), 50):
        items = prepare()
        with Interrupt(at):
            try:
                answers = method(items)
            except KeyboardInterrupt:
                answers = None
        if answers is None:
            answers = resolved(news, method, items)
        assert news.unresolved == []
        assert answers == expected(items), at
    return counted.places


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
    with Interrupt() as counted:
        news.insert_many(items, retry=error)
    for at in sample(range(1, counted.places + 1), 50):
        items = fresh()
        error = lost(items)
        with Interrupt(at):
            try:
                answers = news.insert_ages(items, retry=error)
            except KeyboardInterrupt:
                (again,) = news.unresolved
                answers = news.insert_ages(items, retry=again)
        assert answers == [0] * len(items), at
        assert news.unresolved == []


def test_every_place_of_one_insert(news, sample):
    """``insert`` likewise."""

    def insert(items, **more):
        return [news.insert(items[0], **more)]

    assert interrupted_everywhere(news, insert, lambda: fresh()[:1], lambda _: [True], sample) > 50


@pytest.mark.parametrize(
    "packages", ["urifilter_redis/client.py", pytest.param("urifilter_redis", marks=pytest.mark.nightly)]
)
def test_every_place_of_a_stream(news, monkeypatch, packages):
    """``iter_unique``: items handed out, in ``unresolved``, and asked about anew are all items, once each."""
    monkeypatch.setattr(item_flows, "WINDOW", 8)
    with Interrupt(packages=(packages,)) as counted:
        list(news.iter_unique(fresh()))
    for at in range(1, counted.places + 1):
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
    with Interrupt(packages=("redis",)) as counted:
        news.insert_many(fresh())
    for at in sample(range(1, counted.places + 1, 7), 20):
        items = fresh()
        with Interrupt(at, packages=("redis",)):
            try:
                answers = news.insert_ages(items)
            except KeyboardInterrupt:
                answers = None
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
