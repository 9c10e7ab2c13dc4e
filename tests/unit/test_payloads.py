"""What a filter keeps of an item in flight: both come back as they were."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urifilter_redis.bloom.encoding import MOST_BYTES, pack, unpack
from urifilter_redis.errors import BadItem

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
