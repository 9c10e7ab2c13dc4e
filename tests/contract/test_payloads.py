"""What was kept with a claimed item comes back as it was, whoever gets the item."""

from __future__ import annotations

from support.surfaces import LIBRARY, PYTHON, on

from urifilter_redis import Claim

#: Items and payloads of each kind that JSON has.
KEPT = {"a": {"depth": 2}, "b": "text", "c": 7, "d": [None, True], "e": None, "f": "\ud800", "é": "x" * 65_536}


def by_item(claims):
    return {each.item: each.payload for each in claims}


@on(*PYTHON, "http")
def test_each_payload_comes_back_with_its_item(news, other):
    """None is a payload; an item without one is its own."""
    with news.claims() as mine, other.claims() as theirs:
        assert mine.claim_many(KEPT, payload=KEPT.get) == [True] * len(KEPT)
        assert mine.claim("none given") is True
        assert mine.claim("none", payload=None) is True
        kept = KEPT | {"none given": "none given", "none": None}
        assert by_item(mine.claimed(kept)) == kept
        assert by_item(news.in_flight()) == kept
        mine.release(kept)
        assert by_item(theirs.reclaim()) == kept
        theirs.reject(kept, "404")
        assert by_item(other.dead_letters()) == kept


@on(*PYTHON, "http")
def test_the_latest_claim_decides(news):
    with news.claims() as mine, news.claims() as theirs:
        mine.claim("a", payload="first")
        mine.release(["a"])
        assert theirs.claim("a", payload="second") is True
        theirs.release(["a"])
        assert mine.reclaim() == [Claim("a", "second")]


@on(*PYTHON, "http")
def test_items_come_back_as_they_were(news, other):
    """Whatever JSON value they are; true is not 1."""
    items = ["a", {"b": [1, None]}, 7, True, 2.5, ["c"], "\ud800", "x" * 65_536]
    with news.claims() as mine, other.claims() as theirs:
        assert mine.claim_many(items) == [True] * len(items)
        mine.release(items)
        found = theirs.reclaim()
        assert sorted(map(repr, (each.item for each in found))) == sorted(map(repr, items))
        assert all(each.item == each.payload for each in found)
        assert theirs.commit([each.item for each in found]) == [True] * len(items)


@on(*PYTHON, "http")
def test_bytes_that_the_library_claimed(news, surface):
    """They are bytes unless they are text, and are given back, committed and offered once more as such."""
    odd = [b"odd\xff", b"\xfe"]
    with surface.made.claims() as others, news.claims() as mine:
        others.claim_many([*odd, b"text"], payload=lambda _: b"\xfe\x00")
        others.release([*odd, b"text"])
        found = mine.reclaim()
        text = b"text" if surface.name in LIBRARY else "text"
        assert {each.item: each for each in found} == {item: Claim(item, b"\xfe\x00") for item in (*odd, text)}
        assert mine.release([text, odd[1], odd[0]], failed=True) == [True] * 3
        assert [each.failures for each in mine.reclaim()] == [1] * 3
        assert mine.commit(["never", odd[0]]) == [True, True]
        assert mine.reject([odd[1], text], "404") == [True, True]
        assert news.retry_dead_letters([odd[0], odd[1]]) == 1
        assert [each.item for each in mine.reclaim()] == [odd[1]]


def test_what_others_keep_is_printed_with_the_line(make_filter, make):
    """The payload that a crawler in Python gave comes out of every surface that reclaims."""
    news = make()
    with make_filter().claims() as others:
        others.claim("a", payload={"depth": 2})
    with news.claims() as mine:
        assert mine.reclaim() == [Claim("a", {"depth": 2})]


@on(*PYTHON, "http")
def test_many_long_payloads(news):
    """More than one request, or one call of a script, carries."""
    items = [f"https://example.com/{number}" for number in range(12)]
    with news.claims() as mine, news.claims() as theirs:
        assert mine.claim_many(items, payload=lambda item: item + "x" * 65_000) == [True] * 12
        assert mine.release(items) == [True] * 12
        assert by_item(theirs.reclaim()) == {item: item + "x" * 65_000 for item in items}
