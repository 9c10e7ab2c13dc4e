"""A call with an item that cannot be filtered names all such items, and does nothing at all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.surfaces import IMPOSSIBLE, LIBRARY, PYTHON, on, refused

from urifilter_redis.sdk import calls

WRITING = ("insert_many", "insert_ages", "unique", "forget", "remove")
READING = ("contains_many", "ages")
CLAIMING = ("claim_many", "claim_ages", "commit", "release", "reject")


@pytest.fixture
def bad(surface):
    """Two items that are none; JSON has one kind of them."""
    return [None, None if surface.name == "http" else math.nan]


@pytest.fixture
def queue(make):
    return make(layout="counting")


@on(*PYTHON, "http")
def test_a_bad_item_changes_nothing_and_all_are_named(queue, bad):
    queue.insert_many(["there"])
    for method in (*WRITING, *READING):
        if hasattr(queue, method):
            with refused("bad_item", [1, 3]):
                getattr(queue, method)(["there", bad[0], "fine", bad[1]])
    assert queue.ages(["there", "fine"]) == [1, 0]


@on(*PYTHON, "http")
def test_a_bad_item_claims_and_ends_nothing(news, bad):
    with news.claims() as mine:
        mine.claim_many(["mine", "failed"])
        mine.reject(["failed"], "404")
        for method in CLAIMING:
            with refused("bad_item", [0, 2]):
                getattr(mine, method)([bad[0], "mine", bad[1], "fine"])
        with refused("bad_item", [1]):
            news.retry_dead_letters(["failed", bad[0]])
        assert [each.item for each in news.in_flight()] == ["mine"]
        assert [each.item for each in news.dead_letters()] == ["failed"]
        assert news.contains_many(["fine"]) == [False]


@on(*PYTHON)
def test_a_bad_item_of_a_later_request_is_named_by_its_place_in_the_call(news, bad, monkeypatch):
    monkeypatch.setattr(calls, "ITEMS_A_REQUEST", 3)
    items = [*map(str, range(7)), bad[1], "8", bad[0]]
    with refused("bad_item", [7, 9]):
        news.insert_many(items)
    with news.claims() as mine:
        with refused("bad_item", [7, 9]):
            mine.claim_many(items)
        with refused("bad_item", [7, 9]):
            mine.commit(items)
        with refused("bad_item", [5]):
            mine.claim_many(items[:7], payload=lambda item: object() if item == "5" else item)
        assert mine.held == []
    assert news.contains_many(items[:7]) == [False] * 7


@on(*PYTHON, "http")
def test_a_payload_that_cannot_be_kept_is_named_as_its_item(news):
    """One of more than 64 KiB, as an item of as much."""
    with news.claims() as mine:
        with refused("bad_item", [1]):
            mine.claim_many(["a", "b", "c"], payload=lambda item: "x" * 65_537 if item == "b" else 1)
        with refused("bad_item", [2]):
            mine.claim_many(["a", "b", "x" * 65_537])
        assert news.in_flight() == []
        assert mine.claim_many(["a"], payload=lambda _: "x" * 65_536) == [True]


@on(*LIBRARY)
def test_what_no_surface_but_the_library_could_send(news):
    for bad in (object(), {1: 2}, {"a": math.inf}, [{"b": object()}]):
        with refused("bad_item", [1]):
            news.insert_many(["a", bad])
        with refused("bad_item", [0]):
            news.insert_many(["a"], key=lambda _, bad=bad: bad)
    for method in (news.insert, news.contains):
        with refused("bad_item", [0]):
            method(None)
    assert news.contains_many(["a"]) == [False]


@on("sdk", "asyncio-sdk")
def test_what_json_cannot_carry(news):
    """Bytes, and two surrogates that JSON makes one character, are named before anything is sent."""
    for bad in (b"b", np.bytes_(b"b"), "\ud83d\ude00", object(), {1: 2}):
        with refused("bad_item", [1]):
            news.insert_many(["a", bad])
    with news.claims() as mine:
        for bad in (b"", math.nan):
            with refused("bad_item", [1]):
                mine.claim_many(["a", "b"], payload=lambda item, bad=bad: bad if item == "b" else 1)
    assert news.contains_many(["a"]) == [False]


@on(*PYTHON)
def test_one_item_is_no_list_of_items(news):
    """Or the filter would be full of letters."""
    with news.claims() as mine:
        methods = [getattr(news, method) for method in (*WRITING, *READING, "retry_dead_letters")]
        methods += [getattr(mine, method) for method in (*CLAIMING, "claimed")]
        for method in methods:
            for one in ("abc", b"abc", bytearray(b"abc"), memoryview(b"abc")):
                with refused(IMPOSSIBLE):
                    method(one)
    assert news.contains_many(["a", "b", "c"]) == [False] * 3


@on(*PYTHON, "cli")
def test_limits_that_there_cannot_be(news):
    with news.claims() as mine:
        mine.claim_many(["a"])
        for limit in (0, -1, "1.5", True):
            for method in (news.in_flight, news.dead_letters, mine.reclaim):
                with refused(IMPOSSIBLE):
                    method(limit)
        assert [each.item for each in news.in_flight()] == ["a"]


@on(*PYTHON, "http", "cli")
def test_times_that_there_cannot_be(news):
    """A lease is 5 s to an hour, a delay at most a week."""
    for lease in (4.9, 3601, True):
        with refused(IMPOSSIBLE), news.claims(lease=lease) as mine:
            mine.claim_many(["a"])
    with news.claims(lease=5) as mine:
        assert mine.claim_many(["a"]) == [True]
        for delay in (-1, 604_801, True):
            with refused(IMPOSSIBLE):
                mine.release(["a"], delay=delay)
        assert [each.item for each in news.in_flight()] == ["a"]
        assert mine.release(["a"], delay=604_800) == [True]
