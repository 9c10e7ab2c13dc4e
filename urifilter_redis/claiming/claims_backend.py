"""What claims ask: the protocol of a backend, and the backend that asks Redis. The SDK has the one over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from urifilter_redis.bloom.digest import shards_of
from urifilter_redis.engine.batch import Batch, Key, Method
from urifilter_redis.engine.holdings import Claim, ClaimOptions, Found, Holdings
from urifilter_redis.engine.looks import shared
from urifilter_redis.engine.pending import Pending
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import Answering, AnswerLost, UriFilterError
from urifilter_redis.flows import reclaim
from urifilter_redis.flows.claims import leave, options_of_claim, options_of_release, question, reason_of
from urifilter_redis.flows.items import resolve, unresolved
from urifilter_redis.protocol.claims import check_holder, check_lease, default_lease


class Question(Answering, Protocol):
    """A call about items that ``Pending`` can hold."""

    @property
    def writes(self) -> bool:
        """Whether its answers must not be lost."""
        ...


class ClaimsBackend(Protocol):
    """Flows about the claims on one filter; they note changes in ``holdings``, and raise the client's errors."""

    @property
    def holdings(self) -> Holdings:
        """What the object has in flight."""
        ...

    @property
    def name(self) -> str:
        """The filter's name."""
        ...

    @property
    def where(self) -> str:
        """The filter or the service, for the beginning of messages."""
        ...

    @property
    def patience(self) -> float:
        """Seconds after which a flow gives up."""
        ...

    @property
    def pending(self) -> Pending[Any]:
        """The calls whose caller has no answers yet."""
        ...

    def names_of(self, items: Sequence[Any]) -> Sequence[tuple[int, bytes]]:
        """Return the shard and digest under which the holdings have each item."""
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
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        retry: UriFilterError | None,
        *,
        reason: str | None = None,
    ) -> Question:
        """Make the call of a method that commits, or with a reason gives up, or return the call of ``retry``."""
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
        """Have the next beat give back the items of an interrupted claim, except those whose answers were known."""
        ...

    def unresolved(self) -> list[Any]:
        """Return an error, for ``retry=``, of each call that was interrupted."""
        ...

    def reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        """Claim at most ``limit`` items of dead holders, or due again; note each in ``found``."""
        ...

    def read_outstanding(self, within: float | None) -> Flow[Any]:
        """Note how many items others have in flight; see ``Holdings.must_read``."""
        ...

    def beat(self) -> Flow[None]:
        """Give a sign of life; correct the holdings where the server has other items."""
        ...

    def give_back_all(self, delay: float) -> Flow[None]:
        """Release all items in flight; ``delay`` is in seconds."""
        ...


class RedisClaims:
    """A backend that asks Redis itself; see ``ClaimsBackend``.

    Args:
        session: the session of the open filter.
        lease: seconds; None: the filter's default.
        holder: 16 hex digits; None: draw one.
        pauses: whether a reclaim that found nothing is followed by a pause.
        gives_back: whether a beat gives back what the holder has in flight by the server alone.

    Raises:
        ValueError: the lease or the holder is impossible.
    """

    def __init__(
        self,
        session: Session,
        lease: float | None,
        holder: str | None,
        *,
        pauses: bool = True,
        gives_back: bool = True,
    ) -> None:
        seconds = default_lease(session.config.shards) if lease is None else check_lease(lease)
        self._session, self._gives_back = session, gives_back
        self.holdings = Holdings(seconds, None if holder is None else check_holder(holder), pauses=pauses)

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
        """The batches whose caller has no answers yet."""
        return self._session.pending

    def names_of(self, items: Sequence[Any]) -> list[tuple[int, bytes]]:
        """Return the shard and digest of each item."""
        digests = self._session.digester(items)
        return list(zip(shards_of(digests, self._session.config.shards), digests, strict=True))

    def claiming(
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        payload: Callable[[Any], object] | None,
        retry: UriFilterError | None,
    ) -> Batch:
        """Make the batch of a method that claims."""
        claim_options = options_of_claim(self.holdings.holding, objects, key, payload, self.holdings)
        return question(self._session, method, objects, claim_options, retry, key)

    def committing(
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        retry: UriFilterError | None,
        *,
        reason: str | None = None,
    ) -> Batch:
        """Make the batch of a method that commits."""
        kept = None if reason is None else reason_of(reason)
        claim_options = ClaimOptions(self.holdings.holding, self.holdings, reason=kept)
        return question(self._session, method, objects, claim_options, retry, key)

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
        claim_options = options_of_release(self.holdings.holding, delay, self.holdings, failed=failed)
        return question(self._session, method, objects, claim_options, retry, key)

    def resolve(self, question: Batch) -> Flow[Batch]:
        """Get all answers of a batch."""
        return resolve(self._session, question)

    def leave(self, question: Batch, known: Sequence[int | None]) -> None:
        """Have the next beat give back the items of an interrupted claim."""
        leave(question, known, self._session.config.shards)

    def unresolved(self) -> list[AnswerLost]:
        """Return an error of each commit and release that was interrupted."""
        return unresolved(self._session, self.holdings)

    def reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        """Claim at most ``limit`` items; see ``flows.reclaim``."""
        look = reclaim.reclaim_round(self._session, self.holdings, reclaim.Round(limit, found=found))
        return shared(self.holdings, limit, self.patience, look)

    def read_outstanding(self, within: float | None) -> Flow[Any]:
        """Ask all shards."""
        return reclaim.outstanding(self._session, self.holdings, within)

    def beat(self) -> Flow[None]:
        """Beat in the shards of the items in flight; see ``flows.reclaim``."""
        if self._gives_back:
            return reclaim.beat(self._session, self.holdings)
        return reclaim.prolong(self._session, self.holdings)

    def give_back_all(self, delay: float) -> Flow[None]:
        """Release all items in flight."""
        return reclaim.give_back_all(self._session, self.holdings, delay)
