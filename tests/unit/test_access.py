"""Wrong tokens: some are answered at once, and more of the same address at a pace."""

from __future__ import annotations

import pytest

from urifilter_redis.service.access import ADDRESSES, LONGEST_HOLD, MOST_HELD, WrongTokens


@pytest.fixture
def clock():
    """The time, which the test sets."""
    return [1000.0]


@pytest.fixture
def guesses(clock):
    """Twenty a minute: one in three seconds."""
    return WrongTokens(20, lambda: clock[0])


def test_some_are_free(guesses, clock):
    """Twenty at once; then each answer waits until its turn."""
    assert [guesses.book("a", 1) for _ in range(20)] == [0.0] * 20
    assert guesses.book("a", 1) == pytest.approx(3)
    clock[0] += 3
    assert guesses.book("a", 1) == pytest.approx(3)


def test_too_many(guesses, clock):
    """Who does not wait is told for how long, and that costs no further turn: the address is as before after that."""
    assert [guesses.book("a", 1) for _ in range(20)] == [0.0] * 20
    assert guesses.book("a", 1) == pytest.approx(3)
    refused = [guesses.book("a", 1) for _ in range(1000)]
    assert refused == [pytest.approx(6)] * 1000
    clock[0] += 6 - LONGEST_HOLD
    assert guesses.book("a", 1) == pytest.approx(LONGEST_HOLD)


def test_others_do_not_wait(guesses):
    """Each address has its own."""
    for _ in range(1000):
        guesses.book("a", 1)
    assert guesses.book("b", 1) == 0.0


def test_they_come_back(guesses, clock):
    """After a minute without any, all are free again; and never more than that."""
    for _ in range(21):
        guesses.book("a", 1)
    clock[0] += 63
    assert [guesses.book("a", 1) for _ in range(20)] == [0.0] * 20
    assert guesses.book("a", 1) > 0
    clock[0] += 100_000
    assert [guesses.book("a", 1) for _ in range(20)] == [0.0] * 20
    assert guesses.book("a", 1) > 0


def test_several_in_one_request(guesses):
    """A body with 20 texts that look like tokens has had its guesses."""
    assert guesses.book("a", 20) == 0.0
    assert guesses.book("a", 1) > 0
    assert guesses.book("b", 32) > LONGEST_HOLD


def test_the_table_is_bounded(guesses):
    """The address whose last one is the oldest is forgotten; one that goes on is not."""
    for _ in range(20):
        guesses.book("oldest", 1)
        guesses.book("guesser", 1)
    for number in range(2 * ADDRESSES):
        guesses.book(f"other {number}", 1)
        if number % 500 == 0:
            assert guesses.book("guesser", 1) > 0
    assert guesses.book("oldest", 1) == 0.0


def test_what_is_held_back_is_bounded(clock):
    """However many addresses there are: the others are told to come again, until some have been answered."""
    guesses = WrongTokens(1, lambda: clock[0])
    for number in range(MOST_HELD + 1):
        assert guesses.book(f"{number}", 1) == 0.0
    clock[0] += 57
    held = [guesses.book(f"{number}", 1) for number in range(MOST_HELD)]
    assert held == [pytest.approx(3)] * MOST_HELD
    last = f"{MOST_HELD}"
    assert guesses.book(last, 1) > LONGEST_HOLD
    clock[0] += 3.5
    assert guesses.book(last, 1) == 0.0
