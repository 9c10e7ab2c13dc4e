"""The methods of a client that ask about items: the command of each, and the form of its answers.

A script answers an age for each item: 0 if the item is new or was not seen; ``claim`` and ``commit`` likewise.
``forget``, ``remove`` and ``release`` answer 1 if the item was there. These numbers stay as they are until the last
line of a method, because False is 0, and would be new.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from urifilter_redis.errors import Answering, UriFilterError

__all__ = [
    "AGES",
    "CLAIM",
    "CLAIM_AGES",
    "CLAIM_MANY",
    "CLAIM_UNIQUE",
    "COMMIT",
    "CONTAINS",
    "CONTAINS_MANY",
    "FORGET",
    "INSERT",
    "INSERT_AGES",
    "INSERT_MANY",
    "RELEASE",
    "REMOVE",
    "UNIQUE",
    "Method",
    "selected",
    "with_batch",
]

R = TypeVar("R")
E = TypeVar("E", bound="UriFilterError")


@dataclass(frozen=True, slots=True)
class Method(Generic[R]):
    """A method of a client that asks about items.

    Attributes:
        command: ``insert``, ``contains``, ``forget`` or ``remove``.
        nearby: whether a near cache may answer it, which knows that an item was seen, and not its age.
        term: makes an answer in the method's terms of a script's answer.
        result: makes the method's result of a batch that has all answers.
    """

    command: str
    nearby: bool
    term: Callable[[int], int]
    result: Callable[[Answering], R]


def selected(batch: Answering) -> list[Any]:
    """Return the items that were answered "new"."""
    return [item for item, answer in zip(batch.items, batch.answers, strict=True) if answer == 0]


def with_batch(error: E, batch: Answering) -> E:
    """Return an error with the batch that it is about, whose answers it tells in the terms of the batch's method."""
    error.batch, error.term = batch, batch.term
    return error


def _is_new(batch: Answering) -> bool:
    return batch.answers[0] == 0


def _is_seen(batch: Answering) -> bool:
    return batch.answers[0] != 0


def _all(command: str, term: Callable[[int], int], *, nearby: bool = False) -> Method[list[Any]]:
    """Make a method whose result is a list of all answers in its terms."""
    return Method(command, nearby, term, lambda batch: list(map(term, batch.answers)))  # type: ignore[arg-type]


INSERT: Method[bool] = Method("insert", True, operator.not_, _is_new)  # noqa: FBT003 - nearby
INSERT_MANY: Method[list[bool]] = _all("insert", operator.not_, nearby=True)
INSERT_AGES: Method[list[int]] = _all("insert", int)
UNIQUE: Method[list[Any]] = Method("insert", True, operator.not_, selected)  # noqa: FBT003 - nearby
CONTAINS: Method[bool] = Method("contains", True, bool, _is_seen)  # noqa: FBT003 - nearby
CONTAINS_MANY: Method[list[bool]] = _all("contains", bool, nearby=True)
AGES: Method[list[int]] = _all("contains", int)
FORGET: Method[list[bool]] = _all("forget", bool)
REMOVE: Method[list[bool]] = _all("remove", bool)
CLAIM: Method[bool] = Method("claim", True, operator.not_, _is_new)  # noqa: FBT003 - nearby
CLAIM_MANY: Method[list[bool]] = _all("claim", operator.not_, nearby=True)
CLAIM_AGES: Method[list[int]] = _all("claim", int)
CLAIM_UNIQUE: Method[list[Any]] = Method("claim", True, operator.not_, selected)  # noqa: FBT003 - nearby
COMMIT: Method[list[bool]] = _all("commit", operator.not_)
RELEASE: Method[list[bool]] = _all("release", bool)
