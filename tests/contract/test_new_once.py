"""An item is new to whoever asks first, and to nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from support.surfaces import JSON, LIBRARY, PYTHON, on


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
    items = [
        "",
        "a",
        "1",
        1,
        1.5,
        True,
        False,
        [],
        [None],
        {},
        {"a": None},
        "None",
        "null",
        "\ud800",
        "é",
        "x" * 60_000,
    ]
    assert news.insert_many(items) == [True] * len(items)
    assert news.insert_many(items) == [False] * len(items)
    assert news.insert_many([{"b": 1, "c": 2}, {"c": 2, "b": 1}]) == [True, False]
    new = [{"z": 1}, 2.5, "\udfff"]
    assert news.unique([*items, *new, *items]) == new


@on(*PYTHON)
def test_a_column_is_the_list_of_its_values(news):
    """And a scalar of NumPy is the number that it holds, in an object, too."""
    found = news.unique(np.array(["b", "c", "b"]))
    assert (found, type(found[0])) == (["b", "c"], str)
    assert news.insert_many(np.array([1, 2, 1])) == [True, True, False]
    assert news.insert_many([0.5, {"n": [1, 0.25]}]) == [True, True]
    assert news.contains_many([np.int64(1), np.float32(0.5), {"n": [np.uint8(1), np.float64(0.25)]}]) == [True] * 3


@on(*PYTHON, "http")
def test_answers_are_true_or_false_and_ages_are_numbers(news):
    with news.claims() as mine:
        bools = [news.insert_many(["a"]), news.contains_many(["a"]), news.forget(["a"]), mine.claim_many(["a", "b"])]
        bools += [mine.release(["a", "x"]), mine.commit(["b"]), mine.reject(["x"], "404")]
        ages = [news.insert_ages(["c", "b"]), news.ages(["c", "x"]), mine.claim_ages(["d", "b"])]
    assert {type(each) for some in bools for each in some} == {bool}
    assert {type(each) for some in ages for each in some} == {int}


@on(*LIBRARY, "cli")
def test_bytes_are_the_text_that_they_encode(news, make_filter):
    made = make_filter()
    assert made.insert_many([b"\xc3\xa9", "a"]) == [True, True]
    assert news.insert_many(["é", "b", "a"]) == [False, True, False]


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
