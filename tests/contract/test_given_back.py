"""What its holder gives back, or loses by dying, is offered again by ``reclaim``: with its payload and its counts."""

from __future__ import annotations

import pytest
from support.in_flight import let_lapse
from support.surfaces import JSON, LIBRARY, PYTHON, on

from urifilter_redis import Claim, Outstanding


@pytest.fixture
def lapse(surface):
    """Let all holders be dead."""

    def lapse() -> None:
        with surface.server.client() as admin:
            let_lapse(surface.made, admin)

    return lapse


def items(claims):
    return sorted(each.item for each in claims)


def test_what_is_released_is_reclaimed_once(news, other):
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a", "b", "c"])
        assert mine.release(["b", "a", "never"]) == [True, True, False]
        assert mine.release(["a"]) == [False]
        assert sorted(theirs.reclaim(), key=lambda each: each.item) == [Claim("a", "a"), Claim("b", "b")]
        assert theirs.reclaim() == []
        assert items(news.in_flight()) == ["a", "b", "c"]


def test_only_its_holder_releases_it(news, other):
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a"])
        assert theirs.release(["a"], failed=True) == [False]
        assert theirs.reclaim() == []
        assert mine.release(["a"]) == [True]


def test_what_is_released_may_be_claimed_and_inserted(news):
    """By whoever comes first, before anybody reclaims it."""
    with news.claims() as mine, news.claims() as theirs:
        mine.claim_many(["a", "b", "c"])
        mine.release(["a", "b", "c"])
        assert theirs.claim_many(["a"]) == [True]
        assert news.insert_many(["a", "b"]) == [False, True]
        assert items(theirs.reclaim()) == ["c"]


def test_failures_are_counted_until_a_commit(news):
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        for failures in range(1, 4):
            assert mine.release(["a"], failed=True) == [True]
            assert mine.reclaim() == [Claim("a", "a", failures=failures)]
        mine.release(["a", "b"])
        assert sorted(mine.reclaim(), key=lambda each: each.item) == [Claim("a", "a", failures=3), Claim("b", "b")]
        mine.commit(["a"])
        news.forget(["a"])
        assert mine.claim_many(["a"]) == [True]
        mine.release(["a"])
        assert mine.reclaim() == [Claim("a", "a")]


@on(*PYTHON, "http")
def test_whoever_claims_is_told_of_failures_and_lapses(news, lapse):
    """Also of those before other holders; and of none of another's item."""
    with news.claims() as mine, news.claims() as theirs:
        assert mine.claim_many(["a", "b", "c"]) == [True] * 3
        mine.release(["a", "c"], failed=True)
        assert theirs.claim_many(["d", "a", "b"]) == [True, True, False]
        assert theirs.claimed(["d", "a", "b", "never"]) == [Claim("d", "d"), Claim("a", "a", failures=1)]
        theirs.release(["a"], failed=True)
        assert mine.claim_many(["a"], payload=lambda _: None) == [True]
        assert mine.claimed(["a"]) == [Claim("a", None, failures=2)]
    news.unclosed(lease=3600).claim_many(["e"])
    lapse()
    with news.claims() as mine:
        assert mine.claim_many(["e"]) == [True]
        assert mine.claimed(["e"]) == [Claim("e", "e", lapses=1)]


def test_what_a_dead_holder_had_is_anybodys(news, lapse):
    """By reclaim, claim or insert; nobody takes it for seen."""
    dead = news.unclosed(lease=3600)
    assert dead.claim_many(["a", "b", "c", "d"]) == [True] * 4
    lapse()
    with news.claims() as mine:
        assert news.contains_many(["a", "b"]) == [False, False]
        assert news.insert_many(["a"]) == [True]
        assert mine.claim("b") is True
        assert mine.reclaim() in (
            [Claim("c", "c", lapses=1), Claim("d", "d", lapses=1)],
            [Claim("d", "d", lapses=1), Claim("c", "c", lapses=1)],
        )
        assert news.contains_many(["c", "d"]) == [True, True]


def test_a_dead_holder_may_commit_all_the_same(news, lapse):
    """It has fetched its pages; once, and what others have got meanwhile is theirs no longer."""
    dead = news.unclosed(lease=3600)
    dead.claim_many(["a", "b"])
    lapse()
    with news.claims() as mine:
        assert mine.claim_many(["a"]) == [True]
        assert dead.commit(["a", "b"]) == [True, True]
        assert mine.commit(["a", "b"]) == [False, False]
        assert mine.reclaim() == []


def test_a_delay_is_waited_for(news):
    with news.claims() as mine, news.claims() as theirs:
        mine.claim_many(["a", "b"])
        assert mine.release(["a"], delay=600) == [True]
        assert theirs.reclaim() == []
        left = theirs.outstanding()
        assert left.others == 2
        assert 0 < left.due <= 601
        assert theirs.claim_many(["a"]) == [False]
        assert news.insert_many(["a"]) == [False]
        assert mine.commit(["a", "b"]) == [True, True]


def test_an_end_is_told_when_nobody_has_anything(news, other):
    with news.claims() as mine, other.claims() as theirs:
        assert mine.reclaim() == []
        assert mine.outstanding() == Outstanding(0, None)
        theirs.claim_many(["a", "b"])
        left = mine.outstanding()
        assert left.others == 2
        assert 0 < left.due <= 61
        theirs.commit(["a", "b"])
    with news.claims() as mine:
        assert mine.outstanding() == Outstanding(0, None)


@on(*LIBRARY, *JSON)
def test_only_what_others_have_is_outstanding(news):
    """Whatever one has claimed and committed since the last look."""
    with news.claims() as mine, news.claims() as theirs:
        theirs.claim_many(["a", "b"])
        mine.claim_many(["c", "d", "e"])
        assert mine.outstanding().others == 2
        mine.claim_many(["f", "g"])
        assert mine.outstanding().others == 2
        mine.commit(["c", "d", "e", "f", "g"])
        assert mine.outstanding().others == 2


def test_a_limit_takes_as_many_and_leaves_the_rest(news, other):
    """Over all shards; each item once."""
    many = [f"https://example.com/{number}" for number in range(120)]
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(many)
        mine.release(many)
        found = [*theirs.reclaim(7), *mine.reclaim(90), *theirs.reclaim(1)]
        assert len(found) == 98
        assert items(found + theirs.reclaim()) == sorted(many)


@on(*PYTHON)
def test_more_than_a_reclaim_brings_at_once(make):
    """Of many shards; what is left is told meanwhile."""
    news = make(shards=20)
    many = [f"https://example.com/{number}" for number in range(300)]
    with news.claims() as mine:
        mine.claim_many(many)
    with news.claims() as mine:
        found = mine.reclaim(130)
        assert len(found) == 130
        assert mine.outstanding() == Outstanding(170, 0.0)
        assert items(found + mine.reclaim(1000)) == sorted(many)
        assert mine.outstanding() == Outstanding(0, None)
        assert not mine.outstanding()
        assert mine.commit(many) == [True] * 300


@on(*PYTHON)
def test_leaving_gives_back_what_is_left(news, other):
    """At once; after an exception only a lease later, because the next one may fail on it, too."""
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        mine.commit(["a"])
    with other.claims() as theirs:
        assert theirs.reclaim() == [Claim("b", "b")]
        theirs.commit(["b"])
    with pytest.raises(ZeroDivisionError), news.claims(lease=1000) as mine:
        mine.claim("c")
        _ = 1 / 0
    with other.claims() as theirs:
        assert theirs.reclaim() == []
        assert 60 < theirs.outstanding().due <= 1001
