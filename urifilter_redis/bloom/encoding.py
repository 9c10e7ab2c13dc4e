"""The bytes that stand for an item, and the text that a filter keeps of an item in flight and of its payload.

The first byte of that text tells the kind: ``s`` a str (UTF-8, surrogatepass), ``b`` bytes, ``j`` any other JSON value;
``p``: four bytes with the length of the item's text (little-endian), the item's text, and the payload's text.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from urifilter_redis.errors import BadItem

#: Most levels of lists and objects in a JSON item. It is fixed, because the interpreter's own limit depends on the
#: depth of the caller's stack.
NESTING_LIMIT = 256

#: The first bytes of each item that is neither str nor bytes.
JSON_MARK = b"\0json:"


def _number_of(value: Any) -> Any:
    """Return the number of a NumPy scalar, and any other value as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype") else value


def number_in_json(value: Any) -> Any:
    """Return the number of a NumPy scalar, for ``default`` of a ``json.JSONEncoder``.

    Raises:
        TypeError: the value is none.
    """
    number = _number_of(value)
    if number is value:
        raise TypeError(f"{type(value).__name__} is not JSON")
    return number


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, default=number_in_json)

#: Most bad items that a message describes; ``indices`` of the error has all.
_NAMED = 3


def encode_item(item: object) -> bytes:
    r"""Return an item's bytes.

    A str is encoded as UTF-8, lone surrogates included (surrogatepass). bytes stay as they are. Any other JSON value
    becomes ``\0json:`` and its compact dump with sorted keys. A NumPy scalar is the number that it holds.

    Raises:
        BadItem: the item is None, or no JSON value, has NaN, an infinity or a key that is not a string, or is nested
            deeper than 256 levels.

    Example:
        >>> encode_item({"b": 1, "a": 2})
        b'\x00json:{"a":2,"b":1}'
    """
    if isinstance(item, str):
        return str.encode(item, "utf-8", "surrogatepass")
    if isinstance(item, bytes):
        return item
    if item is None:  # what a function returns that finds none: all of these would be one item
        raise BadItem("None is no item")
    return _encode_json(item)


def _encode_json(item: object) -> bytes:
    _check(item)
    try:
        text = _dump(item)
    except ValueError as error:  # an integer of more digits than Python prints
        raise BadItem(str(error)) from error
    return JSON_MARK + text.encode()


def encode_items(items: Sequence[object]) -> list[bytes]:
    """Return the bytes of each item.

    Raises:
        BadItem: some items are bad; the error has the indices of all of them.
    """
    try:
        return list(map(str.encode, items))  # type: ignore[arg-type]  # nearly always all items are str
    except (TypeError, UnicodeEncodeError):
        all_bytes = set(map(type, items)) == {bytes}
        return list(items) if all_bytes else _encode_each(items)  # type: ignore[arg-type]


def _encode_each(items: Sequence[object]) -> list[bytes]:
    encoded: list[bytes] = []
    bad: list[tuple[int, str]] = []
    for index, item in enumerate(items):
        if type(item) is bytes:
            encoded.append(item)
            continue
        try:
            encoded.append(encode_item(item))
        except BadItem as error:
            bad.append((index, str(error)))
    if bad:
        raise bad_items(bad, _NAMED)
    return encoded


def bad_items(bad: Sequence[tuple[int, str]], most: int) -> BadItem:
    """Return the error for items that are bad, each given with the reason; its message has ``most`` of the reasons."""
    named = "; ".join(f"item {index}: {reason}" for index, reason in bad[:most])
    more = f"; and {len(bad) - most} more" if len(bad) > most else ""
    return BadItem(named + more, [index for index, _ in bad])


def _dump(item: object) -> str:
    try:
        return _JSON.encode(item)
    except RecursionError:  # the caller's stack is nearly full; a new thread has an empty one
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_JSON.encode, item).result()


def _check(item: object) -> None:
    """Raise ``BadItem`` unless the item is JSON. A loop does it, so the depth of the caller's stack does not matter."""
    stack = [(item, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > NESTING_LIMIT:
            raise BadItem(f"it is nested deeper than {NESTING_LIMIT} levels")
        stack.extend((member, depth + 1) for member in _members(value))


def _members(value: object) -> Iterable[object]:
    value = _number_of(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise BadItem(f"the key {key!r:.40} is no string")
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadItem(f"{value} is not JSON")
    elif value is not None and not isinstance(value, str | int):
        raise BadItem(f"{type(value).__name__} is neither str nor bytes nor JSON")
    return ()


#: Most bytes of an item in flight, and of its payload.
MOST_BYTES = 64 * 1024

_LENGTH = struct.Struct("<I")


def pack(item: object, payload: object = ...) -> bytes:
    r"""Return the text that is kept of an item; without a payload the item is its own.

    Raises:
        BadItem: the item or the payload is no str, bytes or JSON value, or has more than 64 KiB.

    Example:
        >>> pack("https://example.com/", {"depth": 2})
        b'p\x15\x00\x00\x00shttps://example.com/j{"depth":2}'
    """
    text = _text(item, "the item")
    if payload is ... or payload is item:
        return text
    return b"".join((b"p", _LENGTH.pack(len(text)), text, _text(payload, "its payload")))


def unpack(kept: bytes) -> tuple[Any, Any]:
    """Return the item and its payload.

    Raises:
        ValueError: the text is not one that ``pack`` makes.
    """
    if kept[:1] != b"p":
        item = _value(kept)
        return item, item
    try:
        (length,) = _LENGTH.unpack_from(kept, 1)
    except struct.error as error:
        raise ValueError(f"not an item in flight: {kept[:20]!r}") from error
    end = 1 + _LENGTH.size + length
    return _value(kept[1 + _LENGTH.size : end]), _value(kept[end:])


def _text(value: object, which: str) -> bytes:
    encoded = _encode_json(None) if value is None and which == "its payload" else encode_item(value)
    if isinstance(value, str):
        kind = b"s"
    elif isinstance(value, bytes):
        kind = b"b"
    else:
        kind, encoded = b"j", encoded.removeprefix(JSON_MARK)
    if len(encoded) > MOST_BYTES:
        text = f"a claim keeps at most {MOST_BYTES}: give a smaller payload="
        raise BadItem(f"{which} has {len(encoded)} bytes, and {text}")
    return kind + encoded


def _value(text: bytes) -> Any:
    kind, encoded = text[:1], text[1:]
    if kind == b"s":
        return encoded.decode("utf-8", "surrogatepass")
    if kind == b"b":
        return encoded
    if kind == b"j":
        return json.loads(encoded)
    raise ValueError(f"not an item in flight: {text[:20]!r}")
