"""Repeat a call whose answer was lost, for programs that go on with many items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis.errors import AnswerLost

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["persist"]

T = TypeVar("T")

#: How often a call is repeated after its retries ran out.
ASK_AGAIN = 2


def persist(method: Callable[..., T], *items: object, **more: Any) -> T:
    """Call a writing method of a filter; if its answer is lost, repeat the same call.

    Args:
        method: the method; it takes ``retry=``.
        items: its items.
        more: its other arguments by name.

    Raises:
        AnswerLost: the answer was lost again and again.
    """
    error: AnswerLost | None = None
    for _ in range(ASK_AGAIN):
        try:
            return method(*items, retry=error, **more)
        except AnswerLost as lost:
            error = lost
    return method(*items, retry=error, **more)
