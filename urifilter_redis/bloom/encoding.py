"""Items to bytes."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from urifilter_redis.errors import BadItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["encode_item", "encode_items"]

#: Levels of lists and objects in a JSON item; the same whoever calls, unlike the interpreter's recursion limit.
NESTING_LIMIT = 256

#: What the bytes of an item that is neither str nor bytes begin with.
JSON_MARK = b"\0json:"

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)

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
        return str.encode(item, "utf-8", "surrogatepass")
    if isinstance(item, bytes):
        return item
    _check(item)
    try:
        text = _dump(item)
    except ValueError as error:  # an integer of more digits than Python prints
        raise BadItem(str(error)) from error
    return JSON_MARK + text.encode()


def encode_items(items: Sequence[object]) -> list[bytes]:
    """Return the bytes of each item.

    Raises:
        BadItem: with the indices of all bad items.
    """
    try:
        return list(map(str.encode, items))  # type: ignore[arg-type]  # nearly always all are str
    except (TypeError, UnicodeEncodeError):
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


def _dump(item: object) -> str:
    try:
        return _JSON.encode(item)
    except RecursionError:  # the caller's stack is nearly full; a new thread's is empty
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_JSON.encode, item).result()


def _check(item: object) -> None:
    """Raise ``BadItem`` unless it is JSON; with a stack of its own, so that the caller's does not matter."""
    stack = [(item, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > NESTING_LIMIT:
            raise BadItem(f"nested deeper than {NESTING_LIMIT} levels")
        stack.extend((member, depth + 1) for member in _members(value))


def _members(value: object) -> Iterable[object]:
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
