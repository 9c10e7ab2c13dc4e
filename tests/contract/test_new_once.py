"""An item is new to whoever asks first, and to nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from support.surfaces import ALL, JSON, LIBRARY, on


def test_the_first_is_told_new_and_everybody_else_seen(news, other):
    assert news.insert_many(["a", "b"]) == [True, True]
    assert other.insert_many(["b", "c"]) == [False, True]
    assert news.insert_many(["a", "b", "c"]) == [False] * 3
    assert other.unique(["c", "d", "a"]) == ["d"]


def test_asking_inserts_nothing(news):
    assert news.contains_many(["a", "b"]) == [False, False]
    assert news.ages(["a", "b"]) == [0, 0]
    assert news.insert_many(["a"]) == [True]
    assert news.contains_many(["b", "a"]) == [False, True]
    assert news.ages(["b", "a"]) == [0, 1]


@on(*LIBRARY)
def test_one_item_alone(news):
    assert news.contains("a") is False
    assert news.insert("a") is True
    assert news.insert("a") is False
    assert news.contains("a") is True


@on(*LIBRARY, *JSON)
def test_each_json_value_is_an_item_of_its_own(news):
    """A number is not its text, true is not 1, and an object is the same however its fields are ordered."""
    items = ["", "a", "1", 1, 1.5, True, False, [], [None], {}, {"a": [1, None]}, "\ud800", "é", "x" * 60_000]
    assert news.insert_many(items) == [True] * len(items)
    assert news.insert_many(items) == [False] * len(items)
    assert news.insert_many([{"b": 1, "c": 2}, {"c": 2, "b": 1}]) == [True, False]
    new = [{"z": 1}, 2.5, "\udfff"]
    assert news.unique([*items, *new, *items]) == new


@on(*LIBRARY, "cli")
def test_bytes_are_the_text_that_they_encode(news, make_filter):
    made = make_filter()
    assert made.insert_many([b"\xc3\xa9", "a"]) == [True, True]
    assert news.insert_many(["é", "b", "a"]) == [False, True, False]


@on(*ALL)
def test_spellings_that_the_filter_makes_one(make):
    news = make(normalize="whatwg")
    spellings = ["http://example.com/", "http://Example.com:80/#x", "http://example.com/a"]
    assert news.insert_many(spellings) == [True, False, True]
    assert news.contains_many(["HTTP://EXAMPLE.COM", "http://example.com/b"]) == [True, False]


@on("blocking", "sdk", "http")
def test_many_who_ask_at_once(news, surface):
    """Threads with an object each get each item once between them."""

    def new_of(asked) -> list[str]:
        return [item for start in range(0, 60, 10) for item in asked.unique(map(str, range(start, start + 20)))]

    objects = [surface.open() for _ in range(4)]
    with ThreadPoolExecutor() as threads:
        told = [item for some in threads.map(new_of, objects) for item in some]
    assert sorted(told) == sorted(map(str, range(70)))
