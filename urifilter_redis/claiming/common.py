"""The part of both objects of claims that needs no server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from urifilter_redis.protocol.claims import MOST_DELAY, RECLAIMED_A_CALL, check_delay

if TYPE_CHECKING:
    from urifilter_redis.claiming.ways import Way
    from urifilter_redis.engine.hand import Claim
    from urifilter_redis.errors import UriFilterError

__all__ = ["ClaimsCommon", "log"]

log = logging.getLogger("urifilter_redis")


class ClaimsCommon:
    """The attributes of ``Claims`` and ``AsyncClaims``."""

    def __init__(self, way: Way, name: str | None, *, beat: bool) -> None:
        self._way, self._name, self._beats = way, name, beat
        self._hand, self._may_beat = way.hand, beat
        self._closed = False
        self._told: type[Exception] | None = None

    def __repr__(self) -> str:
        named = "" if self._name is None else f" {self._name!r}"
        state = "closed" if self._closed else f"{len(self.held)} in hand"
        return f"<{type(self).__name__}{named} {self.holder} of {self._way.name}: {state}>"

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
    def unresolved(self) -> list[UriFilterError]:
        """Commits and releases that were interrupted; pass one as ``retry=`` to get the answers.

        The ``method`` of an entry says which of the two it was.

        A claim that was interrupted is given back by itself, because its caller has no answer.

        Example:
            >>> mine.unresolved
            []
        """
        return self._way.unresolved()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("these claims are closed: make new ones with claims()")
        self._hand.check_process()

    def _check_limit(self, limit: int) -> None:
        self._check_open()
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit is a number of items, {RECLAIMED_A_CALL} for example, and not {limit!r}")

    def _begin_closing(self, delay: float) -> bool:
        """Take no more calls; return whether there is something to give back."""
        check_delay(delay)
        if self._closed:
            return False
        self._hand.check_process()
        self._closed = True
        return self._beats and self._hand.has_any

    def _tell_what_is_left(self, error: Exception) -> None:
        log.warning("%s: what is in hand is free after its lease only: %s", self._way.where, error)

    def _delay_after(self, error: object) -> float:
        """Return the delay with which to give back what is left; a failure may come again at once."""
        return 0.0 if error is None else min(self.lease, MOST_DELAY)

    def _tell(self, error: Exception | None) -> None:
        """Log the failure of a beat (None: it did not fail); one that comes again is logged after a success only."""
        if error is not None and type(error) is not self._told:
            log.warning("claims of %s: a beat failed, and the next ones are tried: %s", self._way.name, error)
        self._told = None if error is None else type(error)
