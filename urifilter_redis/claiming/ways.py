"""The way of claims to their filter: to Redis itself, or by the HTTP service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from urifilter_redis.errors import Answering

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.engine.given import Key
    from urifilter_redis.engine.hand import Claim, Found, Hand
    from urifilter_redis.engine.methods import Method
    from urifilter_redis.engine.pending import Pending
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.errors import UriFilterError

__all__ = ["Question", "Way"]


class Question(Answering, Protocol):
    """A call about items, which ``Pending`` may hold."""

    @property
    def writes(self) -> bool:
        """Whether its answers must not be lost."""
        ...


class Way(Protocol):
    """The way to a filter. Its flows note in the hand the changes that they make; errors are those of the client."""

    @property
    def hand(self) -> Hand:
        """The hand of the object."""
        ...

    @property
    def name(self) -> str:
        """The filter's name."""
        ...

    @property
    def where(self) -> str:
        """The beginning of messages: it names the filter or the service."""
        ...

    @property
    def patience(self) -> float:
        """Seconds after which a flow gives up."""
        ...

    @property
    def pending(self) -> Pending[Any]:
        """The calls whose answers their caller does not have yet."""
        ...

    def claiming(
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        payload: Callable[[Any], object] | None,
        retry: UriFilterError | None,
    ) -> Question:
        """Make the call of a method that claims, or return the call of ``retry``."""
        ...

    def committing(
        self, method: Method[Any], objects: Sequence[Any], key: Key, retry: UriFilterError | None
    ) -> Question:
        """Make the call of a method that commits, or return the call of ``retry``."""
        ...

    def releasing(  # noqa: PLR0913 - what a caller may say
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        retry: UriFilterError | None,
        *,
        delay: float,
        failed: bool,
    ) -> Question:
        """Make the call of a method that releases, or return the call of ``retry``; ``delay`` is in seconds."""
        ...

    def resolve(self, question: Any) -> Flow[Any]:
        """Get all answers of a call; return the call."""
        ...

    def leave(self, question: Any, known: Sequence[int | None]) -> None:
        """Leave the items of an interrupted claim, but for those whose answers were known: a beat gives them back."""
        ...

    def unresolved(self) -> list[Any]:
        """Return an error, for ``retry=``, of each call that was interrupted."""
        ...

    def reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        """Take in hand at most ``limit`` items that dead holders had, or that are due again; note each in ``found``."""
        ...

    def look(self) -> Flow[Any]:
        """Let the hand note how much others have."""
        ...

    def beat(self) -> Flow[None]:
        """Give a sign of life; mend the hand where the server knows other items."""
        ...

    def give_back_all(self, delay: float) -> Flow[None]:
        """Release all that the hand has; ``delay`` is in seconds."""
        ...
