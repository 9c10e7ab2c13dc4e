"""Where there is no room left a call is refused whole: nothing of it is inserted or claimed, and what was seen is."""

from __future__ import annotations

import contextlib

import pytest
from support.started.slices import MOST as SLICES
from support.surfaces import refused

from urifilter_redis.bloom import retention

#: As many as the most slices hold: 10, 20, 40 and 80.
THERE = [f"https://example.com/{number}" for number in range(150)]
MORE = [f"https://example.com/more/{number}" for number in range(5)]


@pytest.fixture
def full(make, monkeypatch):
    """A filter that holds as much as it ever can."""
    monkeypatch.setattr(retention, "GROWN_LIMIT", SLICES)
    news = make(capacity=10, shards=1, retention="growing")
    for start in range(0, len(THERE), 10):
        assert news.insert_many(THERE[start : start + 10]) == [True] * 10
    return news


def test_a_full_filter_takes_nothing_more(full):
    for method in (full.insert_many, full.unique):
        with refused("filter_full"):
            method(MORE)
    assert full.contains_many([*MORE, *THERE]) == [False] * 5 + [True] * 150
    assert full.insert_many(THERE) == [False] * 150


def test_a_list_of_which_a_part_found_room(full):
    """It is refused at once, because no repeat would find room for the rest."""
    with refused("filter_full"):
        full.insert_many([*THERE * 4, *MORE])
    assert full.contains_many(MORE) == [False] * 5


def test_a_full_filter_gives_nobody_a_claim_that_could_not_be_committed(full):
    with full.claims() as mine:
        for method in (mine.claim_many, mine.commit):
            with refused("filter_full"):
                method(MORE)
        assert full.in_flight() == []
        assert mine.claim_many(THERE) == [False] * 150
        assert full.contains_many(MORE) == [False] * 5


@pytest.fixture
def crowded(news, surface):
    """Fill the server's memory for a while; the filter has items."""

    @contextlib.contextmanager
    def fill():
        with surface.server.client() as admin:
            admin.config_set("maxmemory", "1")
            try:
                yield
            finally:
                admin.config_set("maxmemory", "0")

    news.insert_many(THERE)
    return fill


def test_a_full_server_inserts_nothing_and_goes_on_later(news, crowded):
    with crowded():
        for method in (news.insert_many, news.unique, news.forget):
            with refused("server_full"):
                method([THERE[0], *MORE])
        assert news.contains_many([*THERE, *MORE]) == [True] * 150 + [False] * 5
    assert news.insert_many([*THERE, *MORE]) == [False] * 150 + [True] * 5


def test_a_full_server_claims_nothing_and_goes_on_later(news, crowded):
    with news.claims() as mine:
        mine.claim_many(["mine"])
        with crowded(), refused("server_full"):
            mine.claim_many(["mine", *MORE])
        assert [each.item for each in news.in_flight()] == ["mine"]
        assert mine.commit(["mine", *MORE]) == [True] * 6
