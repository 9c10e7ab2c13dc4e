"""Giving up is final, keeps a note, and is taken back when somebody wants that."""

from __future__ import annotations

from support.surfaces import JSON, PYTHON, on

from urifilter_redis import Claim


def test_it_is_final(news, other):
    """Nobody is offered it, and everybody has seen it."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a", "b"])
        assert mine.give_up(["a", "never"], "404") == [True, False]
        assert theirs.claim_many(["a", "b"]) == [False, False]
        assert other.insert_many(["a"]) == [False]
        assert other.contains_many(["a"]) == [True]
        assert theirs.reclaim() == []
        assert [each.item for each in news.in_hand()] == ["b"]


def test_only_its_holder_gives_it_up(news, other):
    """And of what nobody has, nothing is noted, and nothing becomes final."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a"])
        assert theirs.give_up(["a", "never"], "404") == [False, False]
        assert news.given_up() == []
        assert news.contains_many(["never"]) == [False]
        assert mine.give_up(["a"], "404") == [True]
        assert mine.give_up(["a"], "410") == [False]
        assert [each.reason for each in news.given_up()] == ["404"]


def test_the_note_says_why_and_what_it_has_been_through(news, surface):
    """The reason is cut at 200 bytes, at the end of a character."""
    with news.claims() as mine, surface.server.client() as admin:
        mine.claim_many(["a", "b"])
        mine.release(["b"], failed=True)
        mine.reclaim()
        before, _ = admin.time()
        assert mine.give_up(["a", "b"], "a" + "ü" * 150) == [True, True]
        after, _ = admin.time()
        notes = {each.item: each for each in news.given_up()}
        assert {item: (each.payload, each.failures, each.lapses) for item, each in notes.items()} == {
            "a": ("a", 0, 0),
            "b": ("b", 1, 0),
        }
        assert {each.reason for each in notes.values()} == {"a" + "ü" * 99}
        assert all(before <= each.at < after + 1 for each in notes.values())


def test_all_are_offered_once_more(news, other):
    """With their payloads, and without their counts."""
    with news.claims() as mine, other.claims() as theirs:
        mine.claim_many(["a", "b", "c"])
        mine.release(["a"], failed=True)
        mine.reclaim()
        mine.give_up(["a", "b"], "404")
        assert other.retry_given_up() == 2
        assert other.retry_given_up() == 0
        assert news.given_up() == []
        assert sorted(theirs.reclaim(), key=lambda each: each.item) == [Claim("a", "a"), Claim("b", "b")]
        assert theirs.commit(["a", "b", "c"]) == [True] * 3


@on(*PYTHON, "http")
def test_some_are_offered_once_more(news):
    with news.claims() as mine:
        mine.claim_many(["a", "b", "c", "in hand"], payload=lambda item: {"of": item})
        mine.give_up(["a", "b", "c"], "404")
        assert news.retry_given_up(["never", "b", "in hand", "a", "b"]) == 2
        assert [each.item for each in news.given_up()] == ["c"]
        assert sorted(mine.reclaim(), key=lambda each: each.item) == [
            Claim("a", {"of": "a"}),
            Claim("b", {"of": "b"}),
        ]


def test_a_forgotten_item_is_noted_no_longer(news):
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        mine.give_up(["a", "b"], "404")
        assert news.forget(["a"]) == [True]
        assert [each.item for each in news.given_up()] == ["b"]
        assert mine.claim_many(["a", "b"]) == [True, False]


@on(*JSON, "blocking", "asyncio")
def test_giving_up_without_a_reason(news):
    with news.claims() as mine:
        mine.claim_many(["a"])
        assert mine.give_up(["a"]) == [True]
        assert [each.reason for each in news.given_up()] == [""]
