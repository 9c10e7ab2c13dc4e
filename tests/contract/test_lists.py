"""The lists of what is in hand and of what was given up have each item once, with all that is known of it."""

from __future__ import annotations

from support.in_hand import let_lapse
from support.surfaces import PYTHON, on


def test_what_is_in_hand(news, other):
    """With its holder, what it has been through, and what is left of its lease."""
    with news.claims(lease=60) as mine, other.claims(lease=5) as theirs:
        mine.claim_many(["a", "b", "c"])
        mine.release(["a", "c"], failed=True)
        assert theirs.claim_many(["a"]) == [True]
        found = {each.item: each for each in other.in_hand()}
        assert sorted(found) == ["a", "b"]
        assert (found["a"].payload, found["a"].failures, found["a"].lapses) == ("a", 1, 0)
        assert (found["b"].payload, found["b"].failures, found["b"].lapses) == ("b", 0, 0)
        assert 0 < found["a"].lease <= 5.2 < found["b"].lease <= 60.2
        assert len({each.holder for each in found.values()}) == 2
        assert all(len(bytes.fromhex(each.holder)) == 8 for each in found.values())


@on(*PYTHON)
def test_a_holder_is_listed_by_its_name(news, surface):
    """The service names it otherwise, so that nobody can speak for it."""
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        assert ({each.holder for each in news.in_hand()} == {mine.holder}) is not surface.is_service


def test_what_has_lapsed_has_no_lease(news, surface):
    news.unclosed(lease=3600).claim_many(["a"])
    with surface.server.client() as admin:
        let_lapse(surface.made, admin)
    (found,) = news.in_hand()
    assert (found.item, found.lease) == ("a", 0)


def test_what_was_given_up_comes_with_the_latest_first(news, surface):
    with news.claims() as mine:
        for item in ("a", "b", "c"):
            mine.claim_many([item])
            mine.give_up([item], f"of {item}")
            with surface.server.client() as admin:  # the next is noted in another millisecond
                at = admin.time()
                while (now := admin.time()) < (at[0], at[1] + 2000) and now[0] == at[0]:
                    pass
        found = news.given_up()
        assert [(each.item, each.reason) for each in found] == [("c", "of c"), ("b", "of b"), ("a", "of a")]
        assert [each.at for each in found] == sorted((each.at for each in found), reverse=True)


def test_a_list_is_empty_at_first(news):
    assert news.in_hand() == news.given_up() == []
    assert news.retry_given_up() == 0


def test_a_limit_is_kept_and_each_item_listed_once(news):
    """Also over pages of a hundred."""
    many = [f"https://example.com/{number}" for number in range(230)]
    with news.claims() as mine:
        mine.claim_many(many)
        mine.give_up(many[:120], "404")
        for listed, wanted in ((news.in_hand, many[120:]), (news.given_up, many[:120])):
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
        assert sorted(repr(each.item) for each in news.in_hand()) == sorted(map(repr, items))
        others.give_up(items, "410")
        assert sorted(repr(each.item) for each in news.given_up()) == sorted(map(repr, items))
