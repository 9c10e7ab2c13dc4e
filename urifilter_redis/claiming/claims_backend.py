"""The backend of claims that asks Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from urifilter_redis.bloom.digest import shards_of
from urifilter_redis.claiming.base import ClaimsBackend
from urifilter_redis.engine.batch import COMMIT, RELEASE, Batch, Key, Method
from urifilter_redis.engine.holdings import Claim, Found, Holdings
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.flows import reclaim
from urifilter_redis.flows.claims import leave, options_of_claim, options_of_commit, options_of_release, question
from urifilter_redis.flows.items import resolve, unresolved
from urifilter_redis.protocol.claims import check_holder, check_lease, default_lease


class RedisClaims(ClaimsBackend[Batch]):
    """A backend that asks Redis itself.

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
        self, session: Session, lease: float | None, holder: str | None, *, pauses: bool = True, gives_back: bool = True
    ) -> None:
        seconds = default_lease(session.config.shards) if lease is None else check_lease(lease)
        holdings = Holdings(seconds, None if holder is None else check_holder(holder), pauses=pauses)
        super().__init__(session.keys.name, session, holdings)
        self._gives_back = gives_back

    def names_of(self, items: Sequence[Any]) -> list[tuple[int, bytes]]:
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
        claim_options = options_of_claim(self.holdings.holding, objects, key, payload, self.holdings)
        return question(self._session, method, objects, claim_options, retry, key)

    def committing(
        self, objects: Sequence[Any], key: Key, retry: UriFilterError | None, reason: str | None = None
    ) -> Batch:
        claim_options = options_of_commit(self.holdings.holding, reason, self.holdings)
        return question(self._session, COMMIT, objects, claim_options, retry, key)

    def releasing(
        self, objects: Sequence[Any], key: Key, retry: UriFilterError | None, *, delay: float, failed: bool
    ) -> Batch:
        claim_options = options_of_release(self.holdings.holding, delay, self.holdings, failed=failed)
        return question(self._session, RELEASE, objects, claim_options, retry, key)

    def resolve(self, question: Batch) -> Flow[Batch]:
        return resolve(self._session, question)

    def leave(self, question: Batch, known: Sequence[int | None]) -> None:
        leave(question, known, self._session.config.shards)

    def unresolved(self) -> list[AnswerLost]:
        return unresolved(self._session, self.holdings)

    def _reclaim(self, limit: int, found: Found) -> Flow[list[Claim]]:
        return reclaim.reclaim_round(self._session, self.holdings, reclaim.Round(limit, found=found))

    def read_outstanding(self, within: float | None) -> Flow[Any]:
        return reclaim.outstanding(self._session, self.holdings, within)

    def beat(self) -> Flow[None]:
        if self._gives_back:
            return reclaim.beat(self._session, self.holdings)
        return reclaim.prolong(self._session, self.holdings)

    def give_back_all(self, delay: float) -> Flow[None]:
        return reclaim.give_back_all(self._session, self.holdings, delay)
