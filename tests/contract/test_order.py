"""Answers stand where their items do, however many shards and requests they come from, and a repeat counts once."""

from __future__ import annotations

import operator

import pytest
from support.surfaces import JSON, LIBRARY, PYTHON, on

from urifilter_redis import Claim
from urifilter_redis.engine import batch
from urifilter_redis.flows import items as item_flows
from urifilter_redis.sdk import calls

#: Thirty items, each of them three times or four, mixed.
MIXED = [f"https://example.com/{7 * number % 30}" for number in range(100)]
FIRST = [item not in MIXED[:place] for place, item in enumerate(MIXED)]


@pytest.fixture(params=["whole", "in parts"])
def cut(request, monkeypatch):
    """A call is sent at once, or in requests of few items."""
    if request.param == "in parts":
        monkeypatch.setattr(calls, "ITEMS_A_REQUEST", 7)
        monkeypatch.setattr(item_flows, "PART", 4)
        monkeypatch.setattr(batch, "PART_OF_A_SHARD", 1)


@pytest.mark.usefixtures("cut")
def test_answers_stand_where_their_items_do(news):
    assert news.insert_many(MIXED) == FIRST
    asked = ["x", *MIXED[:40], "y", *MIXED[60:], "z"]
    seen = [False, *[True] * 40, False, *[True] * 40, False]
    assert news.contains_many(asked) == seen
    assert news.ages(asked) == [int(each) for each in seen]
    assert news.unique([*MIXED, "z", "y", "z", "x"]) == ["z", "y", "x"]
    assert news.forget([*MIXED[:20], "never"]) == [*[True] * 20, False]
    assert news.insert_many(MIXED) == [place < 20 for place in range(100)]


@pytest.mark.usefixtures("cut")
@on(*PYTHON, "http")
def test_ages_stand_where_their_items_do(news):
    assert news.insert_ages(MIXED) == [int(not each) for each in FIRST]
    assert news.insert_ages(["new", *MIXED, "new"]) == [0, *[1] * 101]


@pytest.mark.usefixtures("cut")
def test_claims_stand_where_their_items_do(news):
    with news.claims() as mine, news.claims() as theirs:
        assert theirs.claim_many(MIXED[:10]) == [True] * 10
        assert mine.claim_many(MIXED) == [each and place >= 10 for place, each in enumerate(FIRST)]
        assert mine.reject([*MIXED[5:15], "never"], "404") == [*[False] * 5, *[True] * 5, False]
        assert mine.commit(["never", *MIXED[15:20]]) == [True] * 6
        assert mine.release([*MIXED[5:30], "never"]) == [*[False] * 15, *[True] * 10, False]
        assert {each.item for each in mine.reclaim()} == {*MIXED[20:30]}


@pytest.mark.usefixtures("cut")
@on(*PYTHON, "http")
def test_payloads_and_counts_stand_where_their_items_do(news):
    """Of some items of a claim, and of all of another."""
    with news.claims() as mine, news.claims() as theirs:
        theirs.claim_many(["5", "9", "20"])
        theirs.release(["5", "9", "20"], failed=True)
        theirs.claim_many(["5"])
        items = [str(number) for number in range(25)]
        assert mine.claim_ages(items, payload=lambda item: [item]) == [*[0] * 5, -1, *[0] * 19]
        failed = {"9": 1, "20": 1}
        told = [(each.item, each.payload, each.failures) for each in mine.claimed(items[::-1])]
        assert told == [(item, [item], failed.get(item, 0)) for item in items[::-1] if item != "5"]
        mine.release(items)
        assert {each.item: each.payload for each in theirs.reclaim()} == {item: [item] for item in items if item != "5"}


def test_a_repeat_in_a_call_counts_once(news):
    """In each method that changes something."""
    assert news.insert_many(["a", "a", "b", "a"]) == [True, False, True, False]
    assert news.forget(["a", "x", "a"]) == [True, False, False]
    assert news.unique(["a", "b", "a", "c", "c"]) == ["a", "c"]
    with news.claims() as mine:
        assert mine.claim_many(["d", "e", "d", "f"]) == [True, True, False, True]
        assert mine.release(["e", "e"]) == [True, False]
        assert mine.reject(["f", "f"], "404") == [True, False]
        assert mine.commit(["d", "d", "x", "x"]) == [True, False, True, False]


def test_a_repeat_is_removed_once(make):
    news = make(layout="counting")
    news.insert_many(["a", "a", "b"])
    assert news.remove(["a", "a", "x"]) == [True, False, False]
    assert news.contains_many(["a", "b"]) == [False, True]


@on(*LIBRARY, *JSON)
def test_no_items_have_no_answers(news):
    assert [news.insert_many([]), news.unique([]), news.contains_many([]), news.forget([])] == [[]] * 4
    with news.claims() as mine:
        assert [mine.claim_many([]), mine.commit([]), mine.release([]), mine.reject([])] == [[]] * 4
    assert news.retry_dead_letters([]) == 0


@on(*PYTHON)
def test_the_callers_own_objects_come_back_in_their_order(news):
    pages = [{"url": item} for item in ("b", "a", "b", "c")]
    assert news.unique(pages, key=lambda page: page["url"]) == [pages[0], pages[1], pages[3]]
    with news.claims() as mine:
        pages = [{"url": item, "depth": place} for place, item in enumerate("dade")]
        got = mine.unique(pages, key=lambda page: page["url"], payload=lambda page: page["depth"])
        assert got == [pages[0], pages[3]]
        assert {each.item: each.payload for each in mine.held} == {"d": 0, "e": 3}
        url = operator.itemgetter("url")
        assert mine.claimed([{"url": "e"}, {"url": "d"}], key=url) == [Claim("e", 3), Claim("d", 0)]
        assert mine.release([{"url": "z"}, {"url": "e"}], key=url) == [False, True]
        assert mine.reject([{"url": "e"}, {"url": "d"}], "404", key=url) == [False, True]
        assert news.retry_dead_letters([{"url": "e"}, {"url": "d"}], key=url) == 1
        assert mine.commit(pages[2:], key=url) == [True, True]
