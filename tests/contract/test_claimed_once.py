"""A claimed item is one holder's, until it is final, given back or rejected."""

from __future__ import annotations

import pytest
from support.surfaces import JSON, LIBRARY, PYTHON, on
from support.surfaces.filters import FILTERS, each

from urifilter_redis import Claim


def test_one_holder_gets_it(news, other):
    with news.claims() as mine, other.claims() as theirs:
        assert mine.claim_many(["a", "b"]) == [True, True]
        assert theirs.claim_many(["a", "c", "b"]) == [False, True, False]
        assert mine.claim_many(["c", "a", "d"]) == [False, False, True]
        assert mine.claim("e") is True
        assert theirs.claim("e") is False


def test_while_it_is_in_flight_it_is_not_new(news, other):
    """To insert it is too late for everybody, its holder included, and to look it up finds it."""
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        for asked in (news, other):
            assert asked.contains_many(["a", "b", "c"]) == [True, True, False]
            assert asked.ages(["a", "c"]) == [-1, 0]
            assert asked.unique(["a", "b"]) == []


@on(*LIBRARY, *JSON)
def test_the_age_of_an_item_in_flight(news):
    """It has one of its own; final it has that of any item."""
    with news.claims() as mine, news.claims() as theirs:
        assert mine.claim_ages(["a", "b", "a"]) == [0, 0, -1]
        assert theirs.claim_ages(["b", "c"]) == [-1, 0]
        assert news.insert_ages(["a", "d"]) == [-1, 0]
        mine.commit(["a"])
        assert theirs.claim_ages(["a", "b", "d", "e"]) == [1, -1, 1, 0]


def test_a_commit_makes_final_whoever_has_it_and_counts_once(news, other):
    """What nobody has claimed becomes final, too: its page was fetched."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a", "b"])
        assert theirs.commit(["a", "never claimed"]) == [True, True]
        assert mine.commit(["a", "b", "never claimed"]) == [False, True, False]
        assert theirs.claim_many(["a", "b", "never claimed"]) == [False] * 3
        assert news.insert_many(["a", "b", "never claimed"]) == [False] * 3
        assert news.in_flight() == []


@on(*LIBRARY, "http", "cli")
def test_without_a_holder_anybodys_item_is_committed_and_released(news):
    with news.claims() as mine, news.claims() as theirs:
        mine.claim_many(["a", "b", "c"])
        assert news.commit(["a", "never claimed"]) == [True, True]
        assert news.commit(["a"]) == [False]
        assert news.release(["b", "a", "x"], failed=True) == [True, False, False]
        assert theirs.reclaim() == [Claim("b", "b", failures=1)]
        assert mine.commit(["b", "c"]) == [True, True]


def test_what_was_seen_is_not_claimed(news):
    news.insert_many(["a"])
    with news.claims() as mine:
        assert mine.claim_many(["a", "b"]) == [False, True]
        assert mine.unique(["a", "b", "c"]) == ["c"]


@pytest.mark.sampled
@on("asyncio", "http", "cli")
@each(FILTERS)
def test_in_each_layout_and_retention(make, surface, settings):
    """From one holder to the next, and final or forgotten at last."""
    news, other = make(**settings), surface.open()
    with news.claims() as mine, other.claims() as theirs:
        assert mine.claim_many(["a", "b", "c", "a"]) == [True, True, True, False]
        assert theirs.claim_many(["a", "d"]) == [False, True]
        assert other.insert_many(["a", "e"]) == [False, True]
        assert mine.commit(["a", "e"]) == [True, False]
        assert mine.release(["b", "a", "d"], failed=True) == [True, False, False]
        assert theirs.reclaim() == [Claim("b", "b", failures=1)]
        if "period" in settings:
            surface.made.rotate()
        assert theirs.commit(["b", "c", "d"]) == [True] * 3
        assert mine.release(["c"]) == [False]
        assert mine.claim_many(["a", "b", "c", "d", "e"]) == [False] * 5
    assert other.insert_many(["a", "b", "c", "d", "e"]) == [False] * 5
    assert news.forget(["a", "b"]) == [True, True]
    with news.claims() as mine:
        assert mine.unique(["a", "b", "c"]) == ["a", "b"]


@on(*PYTHON)
def test_held_is_what_this_object_has(news, other):
    """As far as it has been told."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a", "b", "c"])
        theirs.claim_many(["a", "d"])
        mine.commit(["a"])
        mine.release(["b"])
        assert [each.item for each in mine.held] == ["c"]
        theirs.reclaim()
        assert sorted(each.item for each in theirs.held) == ["b", "d"]
        theirs.commit(["c"])
        assert mine.release(["c"]) == [False]
        assert mine.held == []
        assert mine.unresolved == []
