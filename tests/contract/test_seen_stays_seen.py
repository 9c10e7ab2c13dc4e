"""What was inserted is seen from then on, by everybody: there is no false negative."""

from __future__ import annotations

import pytest
from support.surfaces import on, refused
from support.surfaces.filters import FILTERS, each

ITEMS = [f"https://example.com/{number}" for number in range(200)]


def inserted_in_parts(news):
    for start in range(0, len(ITEMS), 40):
        assert news.insert_many(ITEMS[start : start + 40]) == [True] * 40


def test_all_that_was_inserted_is_seen(news, other):
    inserted_in_parts(news)
    for asked in (news, other):
        assert asked.contains_many(ITEMS) == [True] * len(ITEMS)
        assert asked.insert_many(ITEMS) == [False] * len(ITEMS)
        assert asked.unique(ITEMS) == []


@pytest.mark.sampled
@on("asyncio", "http", "cli")
@each(FILTERS)
def test_in_each_layout_and_retention(make, surface, settings):
    """Whichever slices it has, and after they have turned."""
    news = make(**settings)
    inserted_in_parts(news)
    if "period" in settings:
        surface.made.rotate()
        assert news.insert_many(["later"]) == [True]
        assert news.insert_many(["later", *ITEMS]) == [False] * 201
    assert news.contains_many(ITEMS) == [True] * len(ITEMS)
    assert news.unique([*ITEMS, "one more"]) == ["one more"]
    assert surface.open().contains_many(["one more", *ITEMS]) == [True] * 201


def test_what_is_claimed_and_committed_is_seen(news, other):
    with other.claims() as mine:
        assert mine.claim_many(ITEMS[:20]) == [True] * 20
        assert news.contains_many(ITEMS[:20]) == [True] * 20
        assert mine.commit(ITEMS[:10]) == [True] * 10
        assert mine.reject(ITEMS[10:20], "404") == [True] * 10
    assert news.insert_many(ITEMS[:20]) == [False] * 20


def test_after_the_server_has_lost_its_scripts(news, surface):
    inserted_in_parts(news)
    surface.server.ask("script_flush")
    assert news.contains_many(ITEMS) == [True] * len(ITEMS)
    assert news.insert_many(["new", *ITEMS]) == [True, *[False] * len(ITEMS)]


def test_a_bitmap_that_is_gone_makes_nothing_new(make, surface):
    """An error is told, and never that something is new."""
    news = make(shards=1)
    inserted_in_parts(news)
    with surface.server.client() as admin:
        admin.delete("urifilter:{news:0}:today")
        for ask in (news.insert_many, news.contains_many, news.unique, news.forget):
            with refused("slice_lost"):
                ask(ITEMS)
        with news.claims() as mine:
            for ask in (mine.claim_many, mine.commit):
                with refused("slice_lost"):
                    ask(ITEMS)
