"""Items to bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from urifilter_redis.errors import BadItem

__all__ = ["encode_item", "encode_items"]

#: Levels of lists and objects in a JSON item; the same whoever calls, unlike the interpreter's recursion limit.
NESTING_LIMIT = 256

#: What the bytes of an item that is neither str nor bytes begin with.
JSON_MARK = b"\0json:"

#: Bad items that a message names; ``indices`` has all.
_NAMED = 3


def encode_item(item: object) -> bytes:
    r"""Return an item's bytes.

    str: UTF-8, lone surrogates too (surrogatepass). bytes: as they are. Any other JSON value: ``\0json:`` and its
    compact dump with sorted keys.

    Raises:
        BadItem: NaN, an infinity, a key that is no string, nesting over 256 levels, or no JSON value at all.
    """
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if isinstance(item, bytes):
        return item
    _check(item, 0)
    try:
        text = json.dumps(item, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # an integer of more digits than Python prints
        raise BadItem(str(error)) from error
    return JSON_MARK + text.encode()


def encode_items(items: Sequence[object]) -> list[bytes]:
    """Return the bytes of each item.

    Raises:
        BadItem: with the indices of all bad items.
    """
    try:
        return [item.encode() for item in items]  # type: ignore[attr-defined]  # nearly always all are str
    except (AttributeError, UnicodeEncodeError, TypeError):
        return _encode_each(items)


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
        named = "; ".join(f"item {index}: {reason}" for index, reason in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise BadItem(named + more, [index for index, _ in bad])
    return encoded


def _check(value: object, depth: int) -> None:
    if depth > NESTING_LIMIT:
        raise BadItem(f"nested deeper than {NESTING_LIMIT} levels")
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise BadItem(f"the key {key!r:.40} is no string")
            _check(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check(each, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadItem(f"{value} is not JSON")
    elif value is not None and not isinstance(value, str | int):
        raise BadItem(f"{type(value).__name__} is neither str nor bytes nor JSON")
