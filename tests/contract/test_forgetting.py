"""A forgotten item is new once more; a removed one, too, where the layout can remove."""

from __future__ import annotations

from support.servers import wait_until
from support.surfaces import IMPOSSIBLE, PYTHON, on, refused
from support.surfaces.filters import FILTERS, each


@each(FILTERS)
@on("blocking", "sdk", "http", "cli")
def test_a_forgotten_item_is_new_once_more(make, settings):
    """Once: it is seen again from then on, and others stay seen."""
    news = make(**settings)
    news.insert_many(["a", "b", "c"])
    assert news.forget(["b", "never", "a"]) == [True, False, True]
    assert news.forget(["b"]) == [False]
    assert news.contains_many(["a", "b", "c", "never"]) == [False, False, True, False]
    assert news.insert_many(["c", "a", "never", "a"]) == [False, True, True, False]
    assert news.contains_many(["a", "b", "c"]) == [True, False, True]
    assert news.unique(["b", "a", "b"]) == ["b"]


def test_what_is_in_flight_is_not_forgotten_by_the_way(news):
    """It is in flight as before, unless it is forgotten itself."""
    with news.claims() as mine:
        mine.claim_many(["a", "b"])
        mine.commit(["a"])
        assert news.forget(["a"]) == [True]
        assert mine.claim_many(["a", "b"]) == [True, False]
        assert mine.commit(["a", "b"]) == [True, True]


def test_a_removed_item_is_new_and_others_stay(make):
    queue = make(layout="counting")
    many = [f"https://example.com/{number}" for number in range(100)]
    queue.insert_many(many)
    assert queue.remove([*many[:50], "never", many[0]]) == [*[True] * 50, False, False]
    assert queue.contains_many(many) == [*[False] * 50, *[True] * 50]
    assert queue.insert_many(many[49:]) == [True, *[False] * 50]


def test_a_forgotten_item_is_not_removed(make):
    """It is still in the counters once, and so it is removed when it was inserted anew."""
    queue = make(layout="counting")
    queue.insert_many(["a", "b"])
    assert queue.forget(["a"]) == [True]
    assert queue.remove(["a"]) == [False]
    assert queue.insert_many(["a"]) == [True]
    assert queue.remove(["a", "a"]) == [True, False]
    assert queue.contains_many(["a", "b"]) == [False, True]


def test_other_layouts_cannot_remove(news):
    """They say so, and what was inserted is seen as before."""
    news.insert_many(["a"])
    with refused(IMPOSSIBLE):
        news.remove(["a"])
    assert news.contains_many(["a"]) == [True]


@on(*PYTHON, "http", "cli")
def test_the_figures_count_it(news):
    """What was forgotten, and what was inserted, anew included."""
    news.insert_many(["a", "b", "c"])
    news.forget(["a", "b"])
    news.insert_many(["b"])

    def counted() -> bool:
        found = news.figures()
        return (found["inserted"], found["forgotten"]) == (4, 1)

    wait_until(counted, "the figures are others")
