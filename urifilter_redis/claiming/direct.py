"""The way of claims to Redis itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from urifilter_redis.engine.hand import Hand
from urifilter_redis.engine.terms import Terms
from urifilter_redis.flows import reclaim
from urifilter_redis.flows.claims import claim_terms, leave, question, release_terms
from urifilter_redis.flows.items import resolve, unresolved
from urifilter_redis.protocol.claims import check_holder, check_lease, default_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.engine.batch import Batch
    from urifilter_redis.engine.given import Key
    from urifilter_redis.engine.hand import Claim, Found
    from urifilter_redis.engine.methods import Method
    from urifilter_redis.engine.pending import Pending
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.errors import AnswerLost, UriFilterError

__all__ = ["Direct"]


class Direct:
    """The way to Redis itself; see ``ways.Way``.

    Args:
        session: the session of the open filter.
        lease: seconds; None: the filter's default.
        holder: 16 hex digits; None: draw one.
        pauses: whether a reclaim that found nothing is followed by a pause.

    Raises:
        ValueError: the lease or the holder is impossible.
    """

    def __init__(self, session: Session, lease: float | None, holder: str | None, *, pauses: bool = True) -> None:
        seconds = default_lease(session.config.shards) if lease is None else check_lease(lease)
        self._session = session
        self.hand = Hand(seconds, None if holder is None else check_holder(holder), pauses=pauses)

    @property
    def name(self) -> str:
        """The filter's name."""
        return self._session.keys.name

    @property
    def where(self) -> str:
        """The filter and its server."""
        return self._session.where

    @property
    def patience(self) -> float:
        """Seconds after which a flow gives up."""
        return self._session.total

    @property
    def pending(self) -> Pending[Any]:
        """The batches whose answers their caller does not have yet."""
        return self._session.pending

    def claiming(
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        payload: Callable[[Any], object] | None,
        retry: UriFilterError | None,
    ) -> Batch:
        """Make the batch of a method that claims."""
        terms = claim_terms(self.hand.holding, objects, key, payload, self.hand)
        return question(self._session, method, objects, terms, retry, key)

    def committing(self, method: Method[Any], objects: Sequence[Any], key: Key, retry: UriFilterError | None) -> Batch:
        """Make the batch of a method that commits."""
        return question(self._session, method, objects, Terms(self.hand.holding, self.hand), retry, key)

    def releasing(  # noqa: PLR0913 - what a caller may say
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        retry: UriFilterError | None,
        *,
        delay: float,
        failed: bool,
    ) -> Batch:
        """Make the batch of a method that releases."""
        terms = release_terms(self.hand.holding, delay, self.hand, failed=failed)
        return question(self._session, method, objects, terms, retry, key)

    def resolve(self, question: Batch) -> Flow[Batch]:
        """Get all answers of a batch."""
        return resolve(self._session, question)

    def leave(self, question: Batch, known: Sequence[int | None]) -> None:
        """Leave the items that an interrupted claim has, or may have."""
        leave(question, known, self._session.config.shards)

    def unresolved(self) -> list[AnswerLost]:
        """Return an error of each commit and release that was interrupted."""
        return unresolved(self._session, self.hand)

    def reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        """Take in hand at most ``limit`` items; see ``flows.reclaim``."""
        return reclaim.reclaim_round(self._session, self.hand, reclaim.Round(limit, found=found))

    def look(self) -> Flow[Any]:
        """Look at all shards."""
        return reclaim.outstanding(self._session, self.hand)

    def beat(self) -> Flow[None]:
        """Beat in the shards where the hand has something; see ``flows.reclaim``."""
        return reclaim.beat(self._session, self.hand)

    def give_back_all(self, delay: float) -> Flow[None]:
        """Release all that the hand has."""
        return reclaim.give_back_all(self._session, self.hand, delay)
