"""A source of digests, which go into a filter as they are."""

from __future__ import annotations

import binascii
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from urifilter_redis.moving.sources import Source, Window

__all__ = ["Digests", "read_digest"]

#: The most bytes of an item that a message shows.
SHOWN = 50

#: The bytes of a digest, and its hex digits.
_RAW, _HEX = 16, 32


def read_digest(text: bytes, *, raw: bool) -> bytes | None:
    """Return the 16 bytes of a digest; None if the text is none.

    Args:
        text: 32 hex digits, or the 16 bytes themselves.
        raw: whether 16 bytes are allowed. In a line they would be any text of 16 characters.

    Example:
        >>> read_digest(b"5d41402abc4b2a76b9719d911017c592", raw=False)[:2]
        b']A'
    """
    if raw and len(text) == _RAW:
        return text
    if len(text) != _HEX:
        return None
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return None


class Digests:
    """The digests that a source's items are, of 16 bytes each. Other items are reported and left out.

    Attributes:
        noun: the word for one item.
        names: the texts that tell the source from others.
        total: the source's total.
        raw: whether an item may be the 16 bytes themselves.

    Args:
        source: the source of the items.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.noun, self.names, self.total, self.raw = source.noun, source.names, source.total, source.raw

    def state(self) -> dict[str, Any] | None:
        """Return the source's state."""
        return self._source.state()

    def is_still(self, state: dict[str, Any], place: Any) -> bool:
        """Return whether the source shows no change."""
        return self._source.is_still(state, place)

    def windows(self, place: Any, bad: Callable[[str], None], /) -> Iterator[Window]:
        """Yield the digests after a place in windows.

        Raises:
            ValueError: the source is read from its beginning, and its first window has no digest.
        """
        wanted = f"{_HEX} hex digits" + (f", or {_RAW} bytes" if self.raw else "")
        none_yet = place is None
        for window in self._source.windows(place, bad):
            read = [read_digest(item, raw=self.raw) for item in window.items]
            digests = [digest for digest in read if digest is not None]
            none_yet = none_yet and not digests
            if none_yet and read:
                text = f"{_shown(window.items[0])} is no digest: a digest is {wanted}"
                raise ValueError(f"{text}; other items are imported without --digests")
            for item, digest in zip(window.items, read, strict=True):
                if digest is None:
                    bad(f"{self.noun} {_shown(item)} is left out: a digest is {wanted}")
            yield replace(window, items=digests)


def _shown(item: bytes) -> str:
    text = item[:SHOWN].decode(errors="backslashreplace")
    return f"{text!r}{'…' if len(item) > SHOWN else ''} of {len(item)} bytes"
