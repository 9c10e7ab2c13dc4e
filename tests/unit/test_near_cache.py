"""The near cache: its generations, its time, and its bounds."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.by_hand import config_of
from support.forked import in_child

from urifilter_redis.engine.near_cache import NearCache, NearCacheSettings, near_cache_of


class Clock:
    """A clock that stands still until a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def near(clock):
    """A cache that never is full."""
    return NearCache(100, 60, clock)


def learn(near, *digests, ages=None, least=0) -> None:
    near.end(near.begin(list(digests)), [1] * len(digests) if ages is None else ages, least)


def names(*numbers) -> list[bytes]:
    return [b"%016d" % number for number in numbers]


def test_held_until_its_time_is_over(near, clock):
    """A digest is known for at least half of the time, and for no longer than the whole."""
    learn(near, b"a")
    clock.now += 29.9
    learn(near, b"b")
    assert near.find([b"a", b"b", b"c"]) == [True, True, False]
    clock.now += 30
    assert near.find([b"a", b"b"]) == [True, True]
    clock.now += 0.1  # both are in one generation, which is 60 s old
    assert near.find([b"a", b"b"]) == [False, False]


def test_time_counts_from_the_sending(near, clock):
    """An answer that was long on its way is held no longer for that: it tells of the time at which it was given."""
    question = near.begin([b"a"])
    clock.now += 50
    near.end(question, [1], 0)
    assert near.find([b"a"]) == [True]
    clock.now += 10
    assert near.find([b"a"]) == [False]
    question = near.begin([b"b"])
    clock.now += 60
    near.end(question, [1], 0)
    assert near.find([b"b"]) == [False]


def test_time_counts_from_the_sending_also_in_a_new_generation(clock):
    """An answer that finds its generation full begins the next one, with the time at which it was sent."""
    near = NearCache(4, 60, clock)
    question = near.begin([b"a"])
    learn(near, b"b", b"c")
    clock.now += 20
    near.end(question, [1], 0)
    clock.now += 39.9
    assert near.find([b"a"]) == [True]
    clock.now += 0.1
    assert near.find([b"a"]) == [False]


def test_a_hit_prolongs_nothing(near, clock):
    """A digest that is found again and again is asked about again after its time."""
    learn(near, b"a")
    for _ in range(59):
        clock.now += 1
        assert near.find([b"a"]) == [True]
    clock.now += 1
    assert near.find([b"a"]) == [False]


def test_the_older_generation_goes_when_the_newer_is_full(clock):
    """The digests of the last full half are always known; those before the last two halves are gone."""
    near = NearCache(10, 60, clock)
    for number in range(23):
        learn(near, *names(number))
    assert near.info.entries == 8
    assert near.find(names(*range(23))) == [False] * 15 + [True] * 8


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(2, 50))
def test_bounded(sizes, limit):
    """There are never more entries than were asked for, however large the calls are."""
    near, count = NearCache(limit, 60), 0
    for size in sizes:
        learn(near, *names(*range(count, count + size)))
        count += size
        assert near.info.entries <= limit
    if sizes:
        assert sum(near.find(names(*range(count)))) == near.info.entries


@pytest.mark.parametrize(("least", "known"), [(0, [False, True, True]), (1, [False, False, True])])
def test_answers_that_say_seen(near, least, known):
    """An answer below the least is not taken in: neither "in flight" (-1), nor "not seen" of a question."""
    learn(near, b"a", b"b", b"c", ages=[-1, 0, 3], least=least)
    assert near.find([b"a", b"b", b"c"]) == known


def test_no_answers(near):
    """A call without an answer, or with too few, teaches nothing."""
    for ages in ([], [1]):
        learn(near, b"a", b"b", ages=ages)
    near.end(near.begin([]), [], 0)
    assert near.find([b"a", b"b"]) == [False, False]
    assert near._in_flight == {}


def test_forgotten_while_on_its_way(near):
    """An answer that was on its way when anything was forgotten is not taken in; a later one is."""
    learn(near, b"a", b"b")
    before = near.begin([b"c"])
    near.forget([b"a"])
    assert near.find([b"a", b"b"]) == [False, True]
    near.end(before, [1], 0)
    between = near.begin([b"a"])
    near.end(between, [1], 0)  # may be from before the forgetting, whose reply is still to come
    near.forget([b"a"])
    assert near.find([b"a", b"b", b"c"]) == [False, True, False]
    learn(near, b"a")
    assert near.find([b"a"]) == [True]


def test_forgotten_in_both_generations(clock):
    """A digest is forgotten wherever it is, and ``clear`` forgets all."""
    near = NearCache(4, 60, clock)
    learn(near, b"a", b"b")
    learn(near, b"c")
    assert near.find([b"a", b"b", b"c"]) == [True] * 3
    near.forget([b"a", b"c"])
    assert near.find([b"a", b"b", b"c"]) == [False, True, False]
    question = near.begin([b"d"])
    near.clear()
    near.end(question, [0], 0)
    assert near.find([b"a", b"b", b"c", b"d"]) == [False] * 4
    assert near.info.entries == 0


def test_an_answer_for_a_generation_that_is_gone(clock):
    """Answers that arrive after their generation has been dropped, or has become full, make no room for themselves."""
    near = NearCache(4, 60, clock)
    late, later = near.begin([b"a"]), near.begin([b"b"])
    learn(near, *names(1, 2))
    learn(near, *names(3, 4))
    near.end(late, [1], 0)
    learn(near, *names(5))
    near.end(later, [1], 0)
    assert near.find([b"a", b"b", *names(3, 4, 5)]) == [False, False, True, True, True]


def test_counts(clock):
    """Hits and misses count items, and ``info`` has its settings."""
    near = NearCache(100, 2.5, clock)
    near.find([b"a", b"b"])
    learn(near, b"a")
    near.find([b"a", b"a", b"b"])
    assert dataclasses.asdict(near.info) == {"limit": 100, "seconds": 2.5, "entries": 1, "hits": 2, "misses": 3}


def test_a_forked_child_begins_anew():
    """A forked child knows nothing, and counts from 0; its parent's calls teach it nothing."""
    near = NearCache(100, 60)
    learn(near, b"a")
    near.find([b"a"])
    question = near.begin([b"b"])

    def ask():
        near.end(question, [1], 0)
        info = near.info
        return near.find([b"a", b"b"]), info.hits, info.entries

    assert in_child(ask) == ([False, False], 0, 0)
    assert near.find([b"a"]) == [True]


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"entries": 1}, "from 2 up"),
        *(({"entries": number}, "near_cache is") for number in (-1, True, 1e5)),
        *(({"seconds": number}, "near_cache_seconds is") for number in (0, float("nan"), float("inf"), "60")),
    ],
)
def test_impossible_wishes(wish, text):
    """A number that cannot be is refused, with the numbers that can."""
    with pytest.raises(ValueError, match=text):
        NearCacheSettings(**wish)


def test_wishes():
    """There is no cache unless it is asked for, none with last-seen, and its time is at most a tenth of the period."""
    ring = {"retention": "ring", "slices": 3}
    wish = NearCacheSettings(10)
    assert near_cache_of(NearCacheSettings(), config_of()) is None
    assert near_cache_of(wish, config_of()).seconds == 60
    assert near_cache_of(NearCacheSettings(10, 7.5), config_of()).seconds == 7.5
    assert near_cache_of(wish, config_of(**ring, period="5m")).seconds == 30
    assert near_cache_of(wish, config_of(**ring, period="1d")).seconds == 60
    assert near_cache_of(wish, config_of(**ring, period="5m", expire_after="last-seen")) is None
