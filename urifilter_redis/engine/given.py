"""The items that a caller gave: a collection of them, and the key that makes an item of each object."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Key", "items_of", "listed", "opened_up"]

#: A function from an object of the caller's to its item; None: the objects are the items.
Key: TypeAlias = "Callable[[Any], object] | None"

#: Collections of numbers that are most likely one item.
_LONE = (str, bytes, bytearray, memoryview, array.array)


def opened_up(items: Any) -> Iterable[Any]:
    """Return a collection of Python's own objects: those of Arrow, NumPy and pandas know how to make them.

    Raises:
        TypeError: one string or bytes-like object was given instead of a list, or a table.
    """
    if not isinstance(items, _LONE):
        convert = getattr(items, "to_pylist", None) or getattr(items, "tolist", None)
        if convert is None and hasattr(items, "columns"):
            raise TypeError("a list of items is wanted, not a table: give one column, such as table['url']")
        items = items if convert is None else convert()
    if isinstance(items, _LONE):
        start = items[:40] if isinstance(items, str) else bytes(items[:40])
        raise TypeError(f"a list of items is wanted, not one item: [{start!r}]")
    return items  # type: ignore[no-any-return]


def listed(items: Iterable[Any]) -> Sequence[Any]:
    """Return items as a list of our own: the caller's may change while the answers are on their way.

    Raises:
        TypeError: one string or bytes-like object was given instead of a list, or no collection.
    """
    return list(opened_up(items))


def items_of(objects: Sequence[Any], key: Key) -> Sequence[object]:
    """Return the item of each object."""
    return objects if key is None else [key(each) for each in objects]
