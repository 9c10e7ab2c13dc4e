"""Items to bytes."""

from __future__ import annotations

import inspect
import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urifilter_redis import BadItem
from urifilter_redis.bloom.encoding import NESTING_LIMIT, encode_item, encode_items

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("", b""),
        ("https://ü.example/", "https://ü.example/".encode()),
        ("\ud800", b"\xed\xa0\x80"),
        (b"\xff\x00", b"\xff\x00"),
        ({"b": [1, 2.5, None, True], "a": "é"}, b'\0json:{"a":"\\u00e9","b":[1,2.5,null,true]}'),
        (1, b"\0json:1"),
        (1.0, b"\0json:1.0"),
        (True, b"\0json:true"),
        ([], b"\0json:[]"),
        ("x" * 2**20, b"x" * 2**20),
    ],
)
def test_known(item, expected):
    """Text is UTF-8 with lone surrogates, bytes are themselves, the rest is marked JSON."""
    assert encode_item(item) == expected
    assert encode_items([item, item]) == [expected, expected]


@pytest.mark.slow
@given(json_values.filter(lambda value: value is not None))
def test_any_json_value(value):
    """Every JSON value but null is an item, and can be read back."""
    data = encode_item(value)
    if not isinstance(value, str):
        assert json.loads(data.removeprefix(b"\0json:")) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_order_of_keys_does_not_matter(value):
    """An object is the same item in whatever order its keys stand."""
    assert encode_item(value) == encode_item(dict(reversed(value.items())))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (None, "None is no item"),
        (math.nan, "not JSON"),
        ([math.inf], "not JSON"),
        ({1: 2}, "key 1 is no string"),
        ({"a": {None: 1}}, "key None"),
        ({"a"}, "set is neither"),
        (object(), "object is neither"),
        (10**5000, "digits"),
        (nested(NESTING_LIMIT + 1), "nested deeper"),
        (nested(100_000), "nested deeper"),
    ],
    ids=[
        "nothing",
        "nan",
        "infinity",
        "number key",
        "null key",
        "set",
        "object",
        "huge integer",
        "deep",
        "absurdly deep",
    ],
)
def test_bad(item, reason):
    """Each bad item says why; in a list every bad one is named."""
    with pytest.raises(BadItem, match=reason):
        encode_item(item)
    with pytest.raises(BadItem, match=f"item 1: .*{reason}") as caught:
        encode_items(["fine", item, b"fine", item])
    assert caught.value.indices == [1, 3]


@pytest.mark.parametrize("left", [700, 300, 100])
def test_deepest(left):
    """The limit itself is allowed, however deep the caller's stack is."""

    def deeper() -> bytes:
        used = len(inspect.stack(0))
        return fill(sys.getrecursionlimit() - used - left)

    def fill(levels: int) -> bytes:
        return fill(levels - 1) if levels > 0 else encode_item(nested(NESTING_LIMIT))

    assert deeper() == b"\0json:" + b"[" * NESTING_LIMIT + b"0" + b"]" * NESTING_LIMIT


def test_a_circle_is_too_deep():
    """A list that holds itself, twice, is refused at once."""
    circle: list[object] = []
    circle.extend([circle, circle])
    with pytest.raises(BadItem, match="nested deeper"):
        encode_item(circle)


def test_what_merely_encodes_is_no_item():
    """An object with an ``encode`` of its own is no text, alone or in a list."""

    class Message:
        def encode(self) -> int:
            return 5

    for encode in (encode_item, lambda item: encode_items([item])):
        with pytest.raises(BadItem, match="Message is neither"):
            encode(Message())


def test_many_bad():
    """A message names some, the indices are all."""
    with pytest.raises(BadItem, match="and 7 more") as caught:
        encode_items([math.nan] * 10)
    assert caught.value.indices == list(range(10))


@pytest.mark.slow
@given(st.lists(st.text() | st.binary() | st.integers()))
def test_bulk_is_one_by_one(items):
    """A list is encoded as its items are."""
    assert encode_items(items) == [encode_item(item) for item in items]
