"""A call of the SDK about items: its parts, one for each request, and the answers so far."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from urifilter_redis.bloom.encoding import encode_item, encode_items
from urifilter_redis.checks import check_text
from urifilter_redis.engine.batch import Key, items_of
from urifilter_redis.engine.holdings import Holdings
from urifilter_redis.errors import BadItem, FilterAPIError
from urifilter_redis.http_api import OPERATIONS, write_json
from urifilter_redis.protocol.call_ids import CallId

#: The most items of one request, and their bytes (JSON can take six times as many). A longer list goes in several
#: requests, one after the other. A service with lower limits gets less; see ``Limits``.
ITEMS_A_REQUEST = 5000
BYTES_A_REQUEST = 512 << 10

#: Two characters in Python that JSON cannot tell from one beyond U+FFFF.
_PAIR = re.compile(rb"\xed[\xa0-\xaf].\xed[\xb0-\xbf]", re.DOTALL)


@dataclass(slots=True, eq=False)
class Part:
    """The items of a call that go in one request.

    Attributes:
        start: the position of the first item in the call.
        items: the items of this part.
        call_id: the key and slot of the request until it is answered; None if it inserts nothing.
        in_doubt: whether the request may have run without an answer.
        reply: the service's answer; None until it has arrived.
        arrived: of a part without a reply, the answers that came with an error, None for each item without one.
    """

    start: int
    items: Sequence[object]
    call_id: CallId | None = None
    in_doubt: bool = False
    reply: dict[str, Any] | None = None
    arrived: list[int | None] | None = None

    def note_arrived(self, found: object) -> bool:
        """Note the answers that came with an error, if they are one for each item; return whether there are any."""
        if not isinstance(found, list) or len(found) != len(self.items):
            return False
        self.arrived = [int(each) if isinstance(each, int) else None for each in found]
        return any(each is not None for each in self.arrived)

    def is_answered_by(self, field: str, reply: dict[str, Any]) -> bool:
        """Whether a reply has an answer for each item of this part."""
        found = reply.get(field)
        return isinstance(found, list) and len(found) == reply.get("total") == len(self.items)


class Limits:
    """What the service takes in one request, as far as its refusals have told."""

    #: The error codes that tell it.
    CODES: ClassVar[set[str]] = {"too_many_items", "body_too_large"}

    def __init__(self) -> None:
        self._items, self._body = ITEMS_A_REQUEST, sys.maxsize

    def learn(self, code: str, call: APICall, part: Part) -> None:
        """Take over the half of what was refused with an error code."""
        if code == "too_many_items":
            self._items = min(self._items, max(len(part.items) // 2, 1))
        else:
            self._body = min(self._body, len(write_json(call.body(part))) // 2)

    def exceeded(self, call: APICall, part: Part) -> bool:
        """Whether the service would refuse the request for a part."""
        if len(part.items) > self._items:
            return True
        return self._body < sys.maxsize and len(write_json(call.body(part))) > self._body


#: The filter's name, the method's name and max_age of a call.
What: TypeAlias = tuple[str, str, int | None]


class APICall:
    """One call of the SDK: its items, and the answers so far.

    Attributes:
        what: the filter's name, the method's name, and max_age; with the items they identify a call.
        operation: the operation that it asks for, by its name.
        more: the fields of the request's body beside the items.
        items: the items as the caller gave them, or objects of the caller's.
        key: makes an item of each object; None: the objects are the items.
        term: converts an answer of the service to one of the caller's method.
        parts: the parts, one for each request.
        process: the id of the process that made the call.
        holdings: what notes the answers; None without claims.
    """

    holdings: Holdings | None = None

    def __init__(  # noqa: PLR0913, PLR0917 - all of it is what a call is
        self,
        what: What,
        operation: str,
        more: dict[str, Any],
        objects: Sequence[Any],
        cut: Callable[[Sequence[object]], Sequence[int]],
        key: Key = None,
    ) -> None:
        check_text("filter_typeid", what[0])
        self.what, self.operation, self.more = what, operation, more
        self.items, self.key = list(objects), key
        self.term: Callable[[int], int] = int
        items = items_of(self.items, key)
        self.parts = [Part(begin, items[begin:end]) for begin, end in itertools.pairwise(cut(items))]
        self.process = os.getpid()

    def is_like(self, other: APICall) -> bool:
        """Whether both calls have the same items and process: a forked child cannot take its parent's answers."""
        return (self.what, self.process, self.encoded) == (other.what, other.process, other.encoded)

    @property
    def method(self) -> str:
        """The method's name."""
        return self.what[1]

    @property
    def field(self) -> str:
        """The field of a reply that has a value for each item."""
        return OPERATIONS[self.operation].field

    @property
    def encoded(self) -> list[bytes]:
        """The bytes of each item."""
        return [each for part in self.parts for each in encode_items(part.items)]

    def halve(self, at: int) -> bool:
        """Put two parts in the place of one, and return True; False: it has one item, or may have run in one piece."""
        part = self.parts[at]
        middle = len(part.items) // 2
        if not middle or part.in_doubt:
            return False
        halves = Part(part.start, part.items[:middle]), Part(part.start + middle, part.items[middle:])
        self.parts[at : at + 1] = halves
        return True

    def body(self, part: Part) -> dict[str, Any]:
        """Return the body of the request for a part."""
        return {"items": part.items, **self.more}

    def under_way(self, part: Part) -> AbstractContextManager[None]:  # noqa: ARG002 - of calls about claims
        """Return a context manager for the time of a part's request."""
        return contextlib.nullcontext()

    def answers_of(self, part: Part) -> list[int | None]:
        """Return the answers to a part so far, None for each item without one."""
        if part.reply is None:
            return part.arrived or [None] * len(part.items)
        return list(map(int, part.reply[self.field]))

    @property
    def writes(self) -> bool:
        """Whether the call changes the filter. Then its answers must not be lost."""
        return OPERATIONS[self.operation].keyed

    @property
    def answers(self) -> list[int | None]:
        """The answers so far: ages, or 1 (was there) and 0 (was not); None for each item without an answer."""
        return [answer for part in self.parts for answer in self.answers_of(part)]

    @property
    def filter_answer(self) -> dict[str, Any]:
        """The answer of ``filter``: the replies to all parts, put together."""
        answered = (part for part in self.parts if part.reply is not None)
        pairs = (pair for part in answered for pair in zip(part.items, self.answers_of(part), strict=True))
        new = [item for item, age in pairs if age == 0]
        return {"filter_typeid": self.what[0], "URI_list_unique": new, "total": len(self.items), "unique": len(new)}


def in_json(item: object) -> bool:
    """Whether JSON can carry an item."""
    return not isinstance(item, bytes) and not (isinstance(item, str) and _PAIR.search(encode_item(item)))


def sizes(items: Sequence[object], *, in_base64: bool = False) -> list[int]:
    """Return the length of each item in bytes; ``in_base64``: items that JSON cannot carry are sent as base64.

    Raises:
        FilterAPIError: JSON cannot carry some items (``bad_item``, with their indices).
    """
    try:
        encoded = encode_items(items)
    except BadItem as error:
        raise FilterAPIError(str(error), error_code="bad_item", indices=error.indices) from None
    if in_base64:
        return list(map(len, encoded))
    bad: list[int] = []
    if any(issubclass(kind, bytes) for kind in set(map(type, items))):
        text = "bytes are not JSON: decode them"
        bad = [number for number, item in enumerate(items) if isinstance(item, bytes)]
    elif _PAIR.search(b"".join(encoded)):
        text = "a pair of surrogates is one character in JSON"
        bad = [number for number, each in enumerate(encoded) if _PAIR.search(each)]
    if bad:
        raise FilterAPIError(f"item {bad[0]}: {text}", error_code="bad_item", indices=bad)
    return list(map(len, encoded))


def cuts_of(items: Sequence[object], *, in_base64: bool = False) -> list[int]:
    """Return the first position of each part of a call, and the end of the last; for ``in_base64`` see ``sizes``.

    Raises:
        FilterAPIError: as ``sizes``.
    """
    return cuts(sizes(items, in_base64=in_base64))


def cuts(weights: Sequence[int]) -> list[int]:
    """Return the same, given the bytes of each item."""
    found, size = [0], 0
    for at, each in enumerate(weights):
        if at - found[-1] == ITEMS_A_REQUEST or (size + each > BYTES_A_REQUEST and at > found[-1]):
            found.append(at)
            size = 0
        size += each
    return [*found, len(weights)]
