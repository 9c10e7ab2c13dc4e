"""To reject an item is final and leaves a dead letter, until somebody offers the item once more."""

from __future__ import annotations

import pytest
from support.surfaces import JSON, PYTHON, on
from support.surfaces.filters import FILTERS, each

from urifilter_redis import Claim


def test_it_is_final(news, other):
    """Nobody is offered it, and everybody has seen it."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a", "b"])
        assert mine.reject(["a", "never"], "404") == [True, False]
        assert theirs.claim_many(["a", "b"]) == [False, False]
        assert other.insert_many(["a"]) == [False]
        assert other.contains_many(["a"]) == [True]
        assert theirs.reclaim() == []
        assert [each.item for each in news.in_flight()] == ["b"]


def test_only_its_holder_rejects_it(news, other):
    """What nobody has leaves no dead letter, and does not become final."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a"])
        assert theirs.reject(["a", "never"], "404") == [False, False]
        assert news.dead_letters() == []
        assert news.contains_many(["never"]) == [False]
        assert mine.reject(["a"], "404") == [True]
        assert mine.reject(["a"], "410") == [False]
        assert [each.reason for each in news.dead_letters()] == ["404"]


def test_a_dead_letter_says_why_and_what_it_has_been_through(news, surface):
    """The reason is cut at 200 bytes, at the end of a character."""
    with news.claims() as mine, surface.server.client() as admin:
        mine.claim_many(["a", "b"])
        mine.release(["b"], failed=True)
        mine.reclaim()
        before, _ = admin.time()
        assert mine.reject(["a", "b"], "a" + "ü" * 150) == [True, True]
        after, _ = admin.time()
        letters = {each.item: each for each in news.dead_letters()}
        assert {item: (each.payload, each.failures, each.lapses) for item, each in letters.items()} == {
            "a": ("a", 0, 0),
            "b": ("b", 1, 0),
        }
        assert {each.reason for each in letters.values()} == {"a" + "ü" * 99}
        assert all(before <= each.at < after + 1 for each in letters.values())


def test_all_are_offered_once_more(news, other):
    """With their payloads, and without their counts."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a", "b", "c"])
        mine.release(["a"], failed=True)
        mine.reclaim()
        mine.reject(["a", "b"], "404")
        assert other.retry_dead_letters() == 2
        assert other.retry_dead_letters() == 0
        assert news.dead_letters() == []
        assert sorted(theirs.reclaim(), key=lambda each: each.item) == [Claim("a", "a"), Claim("b", "b")]
        assert theirs.commit(["a", "b", "c"]) == [True] * 3


@on(*PYTHON, "http")
def test_some_are_offered_once_more(news):
    with news.claims() as mine:
        mine.claim_many(["a", "b", "c", "in flight"], payload=lambda item: {"of": item})
        mine.reject(["a", "b", "c"], "404")
        assert news.retry_dead_letters(["never", "b", "in flight", "a", "b"]) == 2
        assert [each.item for each in news.dead_letters()] == ["c"]
        assert sorted(mine.reclaim(), key=lambda each: each.item) == [Claim("a", {"of": "a"}), Claim("b", {"of": "b"})]


def test_a_forgotten_item_leaves_no_dead_letter(news):
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        mine.reject(["a", "b"], "404")
        assert news.forget(["a"]) == [True]
        assert [each.item for each in news.dead_letters()] == ["b"]
        assert mine.claim_many(["a", "b"]) == [True, False]


@on(*JSON, "blocking", "asyncio")
def test_a_reason_may_be_left_out(news):
    with news.claims() as mine:
        mine.claim_many(["a"])
        assert mine.reject(["a"]) == [True]
        assert [each.reason for each in news.dead_letters()] == [""]


@pytest.mark.sampled
@on("asyncio", "http")
@each(FILTERS)
def test_in_each_layout_and_retention(make, settings):
    news = make(**settings)
    with news.claims() as mine, news.claims() as theirs:
        mine.claim_many(["a", "b"])
        assert mine.reject(["b", "a"], "404") == [True, True]
        assert news.insert_many(["a", "b"]) == [False, False]
        assert news.retry_dead_letters(["b"]) == 1
        assert theirs.reclaim() == [Claim("b", "b")]
        assert theirs.commit(["b"]) == [True]
        assert [each.item for each in news.dead_letters()] == ["a"]
