"""The part of both objects of claims that needs no server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from urifilter_redis.bloom.digest import shard_of
from urifilter_redis.engine.hand import Hand
from urifilter_redis.engine.terms import Terms
from urifilter_redis.flows.claims import check_lease, claim_terms, question, release_terms
from urifilter_redis.flows.items import unresolved
from urifilter_redis.protocol.claims import MOST_DELAY, RECLAIMED_A_CALL, check_holder, default_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.engine.batch import Batch
    from urifilter_redis.engine.given import Key
    from urifilter_redis.engine.hand import Claim
    from urifilter_redis.engine.methods import Method
    from urifilter_redis.engine.session import Session
    from urifilter_redis.errors import AnswerLost, UriFilterError

__all__ = ["ClaimsCommon", "log"]

log = logging.getLogger("urifilter_redis")


class ClaimsCommon:
    """The attributes of ``Claims`` and ``AsyncClaims``."""

    def __init__(
        self, session: Session, lease: float | None, name: str | None, holder: str | None, *, beat: bool
    ) -> None:
        seconds = default_lease(session.config.shards) if lease is None else check_lease(lease)
        self._session, self._name, self._beats = session, name, beat
        self._hand = Hand(seconds, None if holder is None else check_holder(holder))
        self._closed, self._told = False, ""

    def __repr__(self) -> str:
        named = "" if self._name is None else f" {self._name!r}"
        state = "closed" if self._closed else f"{len(self.held)} in hand"
        return f"<{type(self).__name__}{named} {self.holder} of {self._session.keys.name}: {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("claims cannot be pickled: what is in hand is in the hands of one process")

    @property
    def holder(self) -> str:
        """The holder: 16 hex digits, new for each object, and in a forked child.

        Example:
            >>> len(mine.holder)
            16
        """
        self._hand.check_process()
        return self._hand.holding.holder

    @property
    def name(self) -> str | None:
        """The caller's name for it, for display only.

        Example:
            >>> mine.name is None
            True
        """
        return self._name

    @property
    def lease(self) -> float:
        """Seconds for which items stay in hand without a sign of life.

        Example:
            >>> mine.lease
            60.0
        """
        return self._hand.lease

    @property
    def held(self) -> list[Claim]:
        """The claims that this object has in hand, as far as it knows.

        Example:
            >>> mine.held
            []
        """
        self._hand.check_process()
        return self._hand.claims

    @property
    def unresolved(self) -> list[AnswerLost]:
        """Commits and releases that were interrupted; pass one as ``retry=`` to get the answers.

        A claim that was interrupted is given back by itself, because its caller has no answer.

        Example:
            >>> mine.unresolved
            []
        """
        return unresolved(self._session, self._hand)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("these claims are closed: make new ones with claims()")
        self._hand.check_process()

    def _claiming(
        self,
        method: Method[Any],
        objects: Sequence[Any],
        key: Key,
        payload: Callable[[Any], object] | None,
        retry: UriFilterError | None,
    ) -> Batch:
        """Make the batch of a method that claims."""
        self._check_open()
        terms = claim_terms(self._hand.holding, objects, key, payload, self._hand)
        return question(self._session, method, objects, terms, retry, key)

    def _ending(
        self, method: Method[Any], objects: Sequence[Any], terms: Terms, key: Key, retry: UriFilterError | None
    ) -> Batch:
        """Make the batch of a method that ends claims."""
        self._check_open()
        return question(self._session, method, objects, terms, retry, key)

    def _committing(self) -> Terms:
        self._check_open()
        return Terms(self._hand.holding, self._hand)

    def _releasing(self, delay: float, *, failed: bool) -> Terms:
        self._check_open()
        return release_terms(self._hand.holding, delay, self._hand, failed=failed)

    def _check_limit(self, limit: int) -> None:
        self._check_open()
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit is a number of items, {RECLAIMED_A_CALL} for example, and not {limit!r}")

    def _leave(self, batch: Batch) -> None:
        """Drop what an interrupted claim has brought: its caller got no answer, so a beat gives it back."""
        for digest, answer in zip(batch.digests, batch.answers, strict=True):
            if answer == 0:
                self._hand.drop(shard_of(digest, self._session.config.shards), digest)

    def _delay_after(self, error: object) -> float:
        """Return the delay with which to give back what is left; a failure may come again at once."""
        return 0.0 if error is None else min(self.lease, MOST_DELAY)

    def _tell(self, error: Exception) -> None:
        """Log the failure of a beat; the same one once."""
        if str(error) != self._told:
            self._told = str(error)
            log.warning("claims of %s: a beat failed, and goes on: %s", self._session.keys.name, error)
