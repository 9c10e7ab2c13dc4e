"""What the service says again and again, it says seldom."""

from __future__ import annotations

import pytest

from urifilter_redis.service import logs


@pytest.fixture
def clock(monkeypatch):
    """The time, which the test sets."""
    now = [0.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    return now


def said(seldom, clock, times, text="away") -> list[float]:
    """Return when a text passes of all the times that somebody wants to say it."""
    passed = []
    for clock[0] in times:
        if seldom.passes(text):
            passed.append(clock[0])
    return passed


def test_the_same_is_said_after_pauses_that_grow(clock):
    """They double up to a minute; at any rate it is said once a minute for as long as it lasts."""
    passed = said(logs.Seldom(), clock, [0.25 * i for i in range(4 * 400)])
    assert passed == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]


def test_what_is_new_is_said_at_once(clock):
    """Another text, and the same after a long time without it."""
    seldom = logs.Seldom()
    assert not seldom.has_passed
    assert said(seldom, clock, [0, 0.5, 1, 2]) == [0, 1]
    assert said(seldom, clock, [2.1, 2.2], "other") == [2.1]
    assert said(seldom, clock, [2.3, 60]) == [2.3, 60]
    assert said(seldom, clock, [120, 120.5, 121]) == [120, 121]
    assert seldom.has_passed
