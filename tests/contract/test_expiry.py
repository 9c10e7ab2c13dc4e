"""Items expire with their slices, late and never early; an expired item is new once more, to one asker."""

from __future__ import annotations

import pytest
from support.surfaces import IMPOSSIBLE, PYTHON, on, refused
from support.surfaces.filters import TURNING, each

RING, LAST_SEEN = TURNING["ring"], TURNING["ring, last seen"]
OLD, NEW = [f"old {number}" for number in range(20)], [f"new {number}" for number in range(20)]


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch):
    """Nobody rotates but the test."""
    monkeypatch.setenv("URIFILTER_ROTATE", "never")


def test_an_item_expires_its_window_after_it_was_first_seen(make, surface):
    """However often it was seen meanwhile."""
    news = make(**RING)
    assert news.insert_many(OLD) == [True] * 20
    for turn in range(2):
        surface.made.rotate()
        assert news.insert_many([*OLD, f"turn {turn}"]) == [*[False] * 20, True]
    assert news.insert_many(NEW) == [True] * 20
    surface.made.rotate()
    assert news.contains_many([*NEW, "turn 1", "turn 0"]) == [True] * 22
    assert news.unique([*NEW, *OLD]) == OLD
    assert news.unique(OLD) == []


def test_or_its_window_after_it_was_last_seen(make, surface):
    """If the filter was made so."""
    news = make(**LAST_SEEN)
    news.insert_many(OLD)
    for turn in range(5):
        assert news.insert_many(OLD[:10]) == [False] * 10
        assert news.contains_many(OLD[10:]) == [turn < 3] * 10
        surface.made.rotate()
    assert news.unique(OLD) == OLD[10:]


@pytest.mark.sampled
@on("asyncio", "http")
@each(TURNING)
def test_in_each_retention_that_turns(make, surface, settings):
    """Nothing expires early, whatever was forgotten meanwhile."""
    news = make(**settings)
    news.insert_many([*OLD, "forgotten"])
    assert news.forget(["forgotten"]) == [True]
    for turn in range(3):
        assert news.contains_many(OLD) == [True] * 20
        assert news.insert_many([*OLD[:10], f"turn {turn}"]) == [*[False] * 10, True]
        surface.made.rotate()
    assert news.contains_many(["turn 1", "turn 2", "forgotten"]) == [True, True, False]
    assert news.unique(OLD) == (OLD[10:] if "expire_after" in settings else OLD)


def test_items_that_never_expire(make):
    """Of a filter without periods; nobody can look at its newest slices alone."""
    news = make()
    news.insert_many(OLD)
    assert news.contains_many(OLD) == [True] * 20
    with refused(IMPOSSIBLE):
        news.ages(OLD, max_age=1)


def test_ages_count_slices_from_the_newest(make, surface):
    """And ``max_age`` looks at the newest of them alone."""
    news = make(**RING)
    for item in ("a", "b", "c"):
        surface.made.rotate()
        news.insert_many([item])
    assert news.ages(["a", "b", "c", "d"]) == [3, 2, 1, 0]
    assert news.ages(["a", "b", "c", "d"], max_age=2) == [0, 2, 1, 0]
    assert news.ages(["a", "b", "c", "d"], max_age=1) == [0, 0, 1, 0]
    for wrong in (0, 4):
        with refused(IMPOSSIBLE):
            news.ages(["a"], max_age=wrong)


@on(*PYTHON, "http")
def test_an_older_item_is_new_to_who_looks_at_newer_slices(make, surface):
    """It is inserted anew, and its age begins anew."""
    news = make(**RING)
    news.insert_many(["a", "b"])
    surface.made.rotate()
    assert news.insert_ages(["a", "b"]) == [2, 2]
    assert news.insert_ages(["a"], max_age=1) == [0]
    assert news.insert_many(["a", "b"], max_age=1) == [False, True]
    assert news.ages(["a", "b"]) == [1, 1]


def test_what_is_in_flight_outlives_its_period(make, surface):
    """Until it is final, and then it expires as any item."""
    news = make(**RING)
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        for _ in range(4):
            surface.made.rotate()
        assert news.contains_many(["a", "b"]) == [True, True]
        assert mine.commit(["a"]) == [True]
        for _ in range(3):
            assert news.contains_many(["a"]) == [True]
            surface.made.rotate()
        assert news.insert_many(["a", "b"]) == [True, False]
