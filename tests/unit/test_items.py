"""Items to bytes; and what a filter keeps of an item in flight, which comes back as it was."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urifilter_redis import BadItem
from urifilter_redis.bloom.encoding import MOST_BYTES, NESTING_LIMIT, encode_item, encode_items, pack, unpack

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


TEXTS = st.text(st.characters(codec=None, exclude_categories=()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(TEXTS, some, max_size=3),
    max_leaves=5,
)
VALUES = TEXTS | st.binary() | JSON


@given(VALUES.filter(lambda item: item is not None), VALUES)
def test_there_and_back(item, payload):
    """Of each kind, with each kind."""
    again = unpack(pack(item, payload))
    assert again == (item, payload)
    assert list(map(type, again)) == [type(item), type(payload)]


@given(st.binary())
def test_any_bytes(kept):
    """What ``pack`` did not make is unpacked, or refused with ValueError."""
    with contextlib.suppress(ValueError):
        assert len(unpack(kept)) == 2


def test_the_format():
    """The bytes are part of the protocol."""
    assert pack("é") == b"s\xc3\xa9"
    assert pack(b"\xff") == b"b\xff"
    assert pack({"b": 1, "a": [None]}) == b'j{"a":[null],"b":1}'
    assert pack("a", 7) == b"p\x02\x00\x00\x00saj7"
    assert pack("a", None) == b"p\x02\x00\x00\x00sajnull"
    item = "the item itself"
    assert pack(item, item) == pack(item)


@pytest.mark.parametrize("value", ["é" * (MOST_BYTES // 2), b"x" * MOST_BYTES, "x" * MOST_BYTES])
def test_at_most_64_kib(value):
    """The bytes are counted, of item and payload each for itself."""
    assert unpack(pack(value, value[:])) == (value, value)
    longer = value + value[:1]
    with pytest.raises(BadItem, match=rf"the item has {MOST_BYTES + 1} bytes|the item has {MOST_BYTES + 2} bytes"):
        pack(longer)
    with pytest.raises(BadItem, match="its payload has"):
        pack("a", longer)


@pytest.mark.parametrize("bad", [math.nan, object(), {1: 2}, {"a": {1, 2}}])
def test_what_is_no_json(bad):
    """Neither an item nor a payload."""
    for arguments in ((bad,), ("a", bad)):
        with pytest.raises(BadItem):
            pack(*arguments)


@pytest.mark.parametrize("kept", [b"", b"x", b"p", b"p\x01\x00", b"p\x05\x00\x00\x00sa", b"j{", b"s\xff"])
def test_damaged(kept):
    """ValueError, and no other."""
    with pytest.raises(ValueError):
        unpack(kept)
