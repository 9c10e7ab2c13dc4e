"""Outcomes: what becomes of a page's addresses in the filter, once its request has come to an end."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING

from urifilter_redis.scrapy.ending import COMMIT, FORGET, RECORD, Ending

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from scrapy.statscollectors import StatsCollector

    from urifilter_redis.engine.holdings import Claim
    from urifilter_redis.scrapy.endings import Endings
    from urifilter_redis.scrapy.options import Claiming

__all__ = ["Outcome", "Outcomes"]

logger = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """The end of a request.

    Attributes:
        DONE: its page was fetched, and its callback has finished.
        FAILED: its download failed after all retries, or its callback or an item pipeline raised an exception.
        REFUSED: a part of the project dropped it before its download, as robots.txt forbids it for example.
        DROPPED: it was dropped on its way to the scheduler.
        STOPPED: the spider closes before its page was handled.
    """

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    DROPPED = "dropped"
    STOPPED = "stopped"


#: With claims, how a page ends that was tried for the first or the last time.
_ENDINGS = {
    Outcome.DONE: COMMIT,
    Outcome.REFUSED: FORGET,
    Outcome.DROPPED: FORGET,
    Outcome.STOPPED: Ending("release"),
}


class Outcomes:
    """Ends the items of requests: with claims, what was handled is committed and what failed is tried again.

    Without claims an item is seen from its question on; all but what was handled is made new again. What failed or was
    refused stays seen for this crawl, however many pages lead to it, and is made new again as the crawl ends.

    Args:
        claiming: the settings of claims; None: without.
        endings: ends items in the background.
        stats: the crawl's stats.
        unrecorded: the items that went on without a question: they are recorded once their pages were fetched.
    """

    def __init__(
        self,
        claiming: Claiming | None,
        endings: Endings,
        stats: StatsCollector,
        unrecorded: Container[str | bytes],
    ) -> None:
        self._claiming, self._endings, self._stats = claiming, endings, stats
        self._unrecorded = unrecorded
        #: The failures, before this time, of items that were reclaimed.
        self._failures: dict[str | bytes, int] = {}
        #: The items that failed or were refused in this crawl: nobody is asked about them again. With claims they come
        #: back by reclaiming alone, which knows how often they have failed.
        self.failed: dict[str | bytes, Outcome] = {}
        #: The number of items that were found, and not fetched before the spider closed.
        self.unfetched = 0

    def note(self, items: Iterable[str | bytes], outcome: Outcome) -> None:
        """End items."""
        items = list(items)
        for item in items:
            self.failed.pop(item, None)
        if outcome is Outcome.STOPPED:
            self.unfetched += len(items)
        if outcome in {Outcome.FAILED, Outcome.REFUSED}:
            self.failed |= dict.fromkeys(items, outcome)
        if self._claiming is None:
            if outcome is Outcome.DONE:
                self._endings.add(RECORD, [item for item in items if item in self._unrecorded])
            elif outcome in {Outcome.DROPPED, Outcome.STOPPED}:
                self._forget(items)
            return
        for item in items:
            failures = self._failures.pop(item, 0)
            if outcome is Outcome.FAILED:
                self._fail(item, failures + 1, self._claiming)
            else:
                self._endings.add(_ENDINGS[outcome], [item])

    def give_back_again(self, item: str | bytes) -> None:
        """Give back an item that failed, or was refused, while it was asked about, and that is in hand once more."""
        if self._claiming is not None:
            refused = self.failed[item] is Outcome.REFUSED
            self._endings.add(FORGET if refused else Ending("release", self._claiming.delay_after(1)), [item])

    def end(self) -> None:
        """Make new again what failed in this crawl; with claims that was told already."""
        if self._claiming is None:
            self._forget(self.failed)

    def _forget(self, items: Iterable[str | bytes]) -> None:
        self._endings.add(FORGET, [item for item in items if item not in self._unrecorded])

    def is_worth_trying(self, claim: Claim) -> bool:
        """Note a claim that was reclaimed; return whether to fetch its page, or end it if it failed too often."""
        assert self._claiming is not None  # noqa: S101 - there are claims
        self._failures[claim.item] = claim.failures
        if claim.failures < self._claiming.failures:
            return True
        self._give_up(claim.item, claim.failures)
        return False

    def _fail(self, item: str | bytes, failures: int, claiming: Claiming) -> None:
        if failures >= claiming.failures:
            self._give_up(item, failures)
        else:
            self._endings.add(Ending("release", claiming.delay_after(failures), failed=True), [item])

    def _give_up(self, item: str | bytes, failures: int) -> None:
        self._failures.pop(item, None)
        self._stats.inc_value("urifilter/given_up")
        logger.warning("Gave up %s after %d failures (URIFILTER_CLAIM_FAILURES)", item, failures)
        self._endings.add(COMMIT, [item])
