"""The text that a filter keeps of an item in hand: the item, and the payload if the caller gave one.

The first byte tells the kind: ``s`` a str (UTF-8, surrogatepass), ``b`` bytes, ``j`` any other JSON value; ``p``: four
bytes with the length of the item's text (little-endian), the item's text, and the payload's text.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from urifilter_redis.bloom.encoding import JSON_MARK, encode_item
from urifilter_redis.errors import BadItem

__all__ = ["MOST_BYTES", "pack", "unpack"]

#: Most bytes of an item in hand, and of its payload.
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
        raise ValueError(f"not an item in hand: {kept[:20]!r}") from error
    end = 1 + _LENGTH.size + length
    return _value(kept[1 + _LENGTH.size : end]), _value(kept[end:])


def _text(value: object, which: str) -> bytes:
    encoded = encode_item(value)
    if isinstance(value, str):
        kind = b"s"
    elif isinstance(value, bytes):
        kind = b"b"
    else:
        kind, encoded = b"j", encoded.removeprefix(JSON_MARK)
    if len(encoded) > MOST_BYTES:
        raise BadItem(
            f"{which} has {len(encoded)} bytes, and a claim keeps at most {MOST_BYTES}: give a smaller payload="
        )
    return kind + encoded


def _value(text: bytes) -> Any:
    kind, encoded = text[:1], text[1:]
    if kind == b"s":
        return encoded.decode("utf-8", "surrogatepass")
    if kind == b"b":
        return encoded
    if kind == b"j":
        return json.loads(encoded)
    raise ValueError(f"not an item in hand: {text[:20]!r}")
