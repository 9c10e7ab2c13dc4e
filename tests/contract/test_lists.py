"""The lists of what is in flight and of dead letters have each item once, with all that is known of it."""

from __future__ import annotations

from support.in_flight import let_lapse
from support.servers import wait_until
from support.surfaces import PYTHON, on


def test_what_is_in_flight(news, other):
    """With its holder, what it has been through, and what is left of its lease."""
    with news.claims(lease=3600) as mine, other.claims(lease=300) as theirs:
        mine.claim_many(["a", "b", "c"])
        mine.release(["a", "c"], failed=True)
        assert theirs.claim_many(["a"]) == [True]
        found = {each.item: each for each in other.in_flight()}
        assert sorted(found) == ["a", "b"]
        assert (found["a"].payload, found["a"].failures, found["a"].lapses) == ("a", 1, 0)
        assert (found["b"].payload, found["b"].failures, found["b"].lapses) == ("b", 0, 0)
        assert 0 < found["a"].lease <= 301 < found["b"].lease <= 3601
        assert len({each.holder for each in found.values()}) == 2
        assert all(len(bytes.fromhex(each.holder)) == 8 for each in found.values())


@on(*PYTHON)
def test_a_holder_is_listed_by_its_name(news, surface):
    """The service names it otherwise, so that nobody can speak for it."""
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        assert ({each.holder for each in news.in_flight()} == {mine.holder}) is not surface.is_service


def test_what_has_lapsed_has_no_lease(news, surface):
    news.unclosed(lease=3600).claim_many(["a"])
    with surface.server.client() as admin:
        let_lapse(surface.made, admin)
    (found,) = news.in_flight()
    assert (found.item, found.lease) == ("a", 0)


def test_the_latest_dead_letter_comes_first(news, surface):
    with news.claims() as mine, surface.server.client() as admin:
        for item in ("a", "b", "c"):
            mine.claim_many([item])
            mine.reject([item], f"of {item}")
            at = admin.time()
            wait_until(lambda at=at: admin.time() > (at[0], at[1] + 1000), "no millisecond passes")
        found = news.dead_letters()
        assert [(each.item, each.reason) for each in found] == [("c", "of c"), ("b", "of b"), ("a", "of a")]
        assert [each.at for each in found] == sorted((each.at for each in found), reverse=True)


def test_a_list_is_empty_at_first(news):
    assert news.in_flight() == news.dead_letters() == []
    assert news.retry_dead_letters() == 0


def test_a_limit_is_kept_and_each_item_listed_once(news):
    """Also over pages of a hundred."""
    many = [f"https://example.com/{number}" for number in range(230)]
    with news.claims() as mine:
        mine.claim_many(many)
        mine.reject(many[:120], "404")
        for listed, wanted in ((news.in_flight, many[120:]), (news.dead_letters, many[:120])):
            assert sorted(each.item for each in listed(1000)) == sorted(wanted)
            assert len({each.item for each in listed(105)} & {*wanted}) == 105
            assert len(listed(7)) == 7
            assert len(listed()) == 100


@on(*PYTHON, "http")
def test_items_of_each_kind_are_listed(news, surface):
    """As ``reclaim`` would bring them."""
    items = ["a", {"x": [1]}, "\ud800", b"odd\xff"]
    with surface.made.claims() as others:
        others.claim_many(items)
        assert sorted(repr(each.item) for each in news.in_flight()) == sorted(map(repr, items))
        others.reject(items, "410")
        assert sorted(repr(each.item) for each in news.dead_letters()) == sorted(map(repr, items))
