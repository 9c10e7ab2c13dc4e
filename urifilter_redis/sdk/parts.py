"""The cutting of a call's items into parts, each of which goes out in one request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from urifilter_redis.bloom.encoding import encode_item, encode_items
from urifilter_redis.errors import BadItem, FilterAPIError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BYTES_A_REQUEST", "ITEMS_A_REQUEST", "cuts", "cuts_of", "in_json", "sizes"]

#: Items of one request, and their bytes, which JSON can make six times as many; a list of more goes out in several,
#: one after the other.
ITEMS_A_REQUEST = 5000
BYTES_A_REQUEST = 512 << 10

#: Two characters in Python that JSON cannot tell from one beyond U+FFFF.
_PAIR = re.compile(rb"\xed[\xa0-\xaf].\xed[\xb0-\xbf]", re.DOTALL)


def in_json(item: object) -> bool:
    """Whether JSON can carry an item."""
    return not isinstance(item, bytes) and not (isinstance(item, str) and _PAIR.search(encode_item(item)))


def sizes(items: Sequence[object], *, in_base64: bool = False) -> list[int]:
    """Return the length of each item in bytes.

    Args:
        items: the items.
        in_base64: whether those that JSON cannot carry go as base64 of their bytes.

    Raises:
        FilterAPIError: JSON cannot carry some items (``bad_item``, with their indices).
    """
    try:
        encoded = encode_items(items)
    except BadItem as error:
        raise FilterAPIError(str(error), error_code="bad_item", indices=error.indices) from None
    bad: list[int] = []
    if in_base64:
        return list(map(len, encoded))
    if any(issubclass(kind, bytes) for kind in set(map(type, items))):
        text, bad = "bytes are not JSON: decode them", [n for n, item in enumerate(items) if isinstance(item, bytes)]
    elif _PAIR.search(b"".join(encoded)):
        text, bad = (
            "a pair of surrogates is one character in JSON",
            [n for n, e in enumerate(encoded) if _PAIR.search(e)],
        )
    if bad:
        raise FilterAPIError(f"item {bad[0]}: {text}", error_code="bad_item", indices=bad)
    return list(map(len, encoded))


def cuts_of(items: Sequence[object]) -> list[int]:
    """Return the positions at which the parts of a call begin, and the end of the last part.

    Raises:
        FilterAPIError: as ``sizes``.
    """
    return cuts(sizes(items))


def cuts(weights: Sequence[int]) -> list[int]:
    """Return the same for items of so many bytes each."""
    found, size = [0], 0
    for at, each in enumerate(weights):
        if at - found[-1] == ITEMS_A_REQUEST or (size + each > BYTES_A_REQUEST and at > found[-1]):
            found.append(at)
            size = 0
        size += each
    return [*found, len(weights)]
