"""Outcomes: the filter is told what became of addresses that were new to this crawl, in the background."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from scrapy import Request

from urifilter_redis.engine.holdings import Claim
from urifilter_redis.scrapy.link import COMMIT, FORGET, RECORD, Ending, Link
from urifilter_redis.scrapy.options import Claiming
from urifilter_redis.scrapy.payloads import url_of

if TYPE_CHECKING:
    from scrapy.statscollectors import StatsCollector

logger = logging.getLogger(__name__)

#: The most items that a crawl remembers to have shared.
MOST_SHARED = 100_000

#: The stats that count the items of each command.
_STATS = {
    "forget": "given_back",
    "record": "recorded",
    "release": "given_back",
    "commit": "committed",
    "reject": "rejected",
}


class Outcome(enum.Enum):
    """The end of a request.

    Attributes:
        DONE: its page was fetched, and its callback has finished.
        FAILED: its download failed after all retries, or its callback or an item pipeline raised an exception.
        REFUSED: a part of the project dropped it before its download, as robots.txt forbids it for example.
        DROPPED: the project's scheduler did not take it.
        STOPPED: the spider closes before its page was handled.
    """

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    DROPPED = "dropped"
    STOPPED = "stopped"


#: With claims, how a page ends that was tried for the first or the last time.
_ENDINGS = {Outcome.DONE: COMMIT, Outcome.REFUSED: FORGET, Outcome.DROPPED: FORGET, Outcome.STOPPED: Ending("release")}


class Outcomes:
    """Ends the items of requests, many in one call: what was handled is committed, what failed is tried again later.

    Without claims an item is seen from its question on; all but what was handled is made new again. What failed or was
    refused stays seen for this crawl, however many pages lead to it, and is made new again as the crawl ends.
    """

    def __init__(self, claiming: Claiming | None, link: Link, stats: StatsCollector) -> None:
        self._claiming, self._link, self._stats = claiming, link, stats
        #: The items that are on their way to the filter.
        self._ends: dict[Ending, dict[str | bytes, None]] = {}
        self._task: asyncio.Task[None] | None = None
        #: The items that were new and whose pages have not ended.
        self.in_flight: set[str | bytes] = set()
        #: The items that were shared of late: links to them would claim them, only to release them once more.
        self.shared: set[str | bytes] = set()
        #: The items that failed or were refused in this crawl: nobody is asked about them again. With claims they come
        #: back by reclaiming alone, which knows how often they have failed.
        self.failed: dict[str | bytes, Outcome] = {}
        #: With claims, the requests of which the filter keeps a part only: this crawl tries them again as they are.
        self.whole: dict[str | bytes, Request] = {}
        #: With claims, the items of pages that are fetched without a question ("pass"), each with what the filter keeps
        #: of its request. They are claimed before the filter is told of any end: a page that links to one of them may
        #: be committed then, and what fails would be lost.
        self.unasked: dict[str | bytes, str | None] = {}
        #: The number of items that were found, and not fetched before the spider closed.
        self.unfetched = 0

    @property
    def forgets(self) -> bool:
        """Whether items are on their way to be forgotten: an answer about one of these may be untrue as it arrives."""
        return FORGET in self._ends

    @property
    def ending(self) -> set[str | bytes]:
        """The items that are on their way to the filter."""
        return {item for items in self._ends.values() for item in items}

    def note(self, items: Iterable[str | bytes], outcome: Outcome) -> None:
        """End items."""
        items = list(items)
        self.in_flight.difference_update(items)
        for item in items:
            self.failed.pop(item, None)
        if outcome is Outcome.STOPPED:
            self.unfetched += len(items)
        if outcome in {Outcome.FAILED, Outcome.REFUSED}:
            self.failed |= dict.fromkeys(items, outcome)
        if self._claiming is None:
            if outcome is Outcome.DONE:  # those that went on without an answer
                self.end(RECORD, [item for item in items if item in self._link.passed or item in self._link.unsure])
            elif outcome in {Outcome.DROPPED, Outcome.STOPPED}:
                self._forget(items)
            return
        for item in items:
            if outcome is Outcome.FAILED:
                self._try_later(item, self._claiming)
                continue
            if outcome is not Outcome.STOPPED:  # nobody has to get it any more
                self.unasked.pop(item, None)
            self.whole.pop(item, None)
            self.end(_ENDINGS[outcome], [item])

    def knows(self, item: str | bytes) -> bool:
        """Whether nobody is asked about an item: it failed, waits in this crawl, or was shared of late."""
        return item in self.failed or item in self.in_flight or item in self.shared

    def give_back_again(self, item: str | bytes) -> None:
        """Give back an item that failed, or was refused, while it was asked about, and that is in flight once more."""
        if self._claiming is not None:
            refused = self.failed[item] is Outcome.REFUSED
            self.end(FORGET if refused else Ending("release", self._claiming.delay_after(1)), [item])

    def is_worth_trying(self, claim: Claim) -> bool:
        """Return whether to fetch the page of a claim that was reclaimed; give it up if it failed too often."""
        assert self._claiming is not None  # noqa: S101 - there are claims
        if claim.failures < self._claiming.failures:
            return True
        self._reject(claim, claim.failures)
        return False

    def share(self, item: str | bytes) -> None:
        """Release a new item, for the crawl that runs low first."""
        if len(self.shared) >= MOST_SHARED:
            self.may_ask_again()
        self.shared.add(item)
        self._stats.inc_value("urifilter/shared")
        self.end(_ENDINGS[Outcome.STOPPED], [item])

    def may_ask_again(self) -> None:
        """Let questions about shared items be asked again, but for those whose release is not told yet."""
        self.shared &= self.ending

    def end(self, ending: Ending, items: Iterable[str | bytes]) -> None:
        """End items in this way, soon."""
        items = dict.fromkeys(items)
        if items:
            self._ends.setdefault(ending, {}).update(items)
            self._begin()

    async def settle(self) -> None:
        """Wait until all items have ended, or Redis is away.

        A question that overtook a forgetting would be answered "seen", and would lose the item.
        """
        if self._ends and not self._link.away:
            self._begin()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def finish(
        self, unfiltered: int, *, commits: bool = True, keep: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """End all items now, and those that failed without claims; report what cannot be ended, and what is unfetched.

        ``unfiltered`` requests with ``dont_filter`` are among the latter. Without ``commits`` nothing is committed.
        ``keep`` keeps both for the next crawl, and reports that.
        """
        if self._claiming is None:
            self._forget(self.failed)
        kept = {} if commits else self._ends.pop(COMMIT, {})
        if self._task is not None:
            await self._task
        if self._ends:
            self._begin()
            await self.settle()
        self._ends.pop(RECORD, None)  # others may fetch these pages, too: so it is with "pass"
        left = self.ending | kept.keys()
        self._report(len(left))
        if self.unfetched:
            self._stats.inc_value("urifilter/unfetched", self.unfetched)
        if keep is not None and not left:
            await keep()
            return
        if self.unfetched and self._claiming is None and not left:
            logger.warning(
                "%d pages were found and not fetched. They are new again, but the pages that link to them are seen, so "
                "a later crawl may not find them: crawls that are stopped need JOBDIR or URIFILTER_CLAIM",
                self.unfetched,
            )
        if unfiltered:
            logger.warning("%d requests with dont_filter, or wanted again, were not made, and are lost", unfiltered)

    def _report(self, left: int) -> None:
        """Say once how many ends could not be told."""
        if not left:
            return
        text = "the ends of %d pages could not be told, because %s: they may be fetched again"
        if self._claiming is None:
            text = "%d addresses were not fetched and stay seen, because %s"
        if self._link.is_unusable:  # which was an error of its own
            logger.warning(text, left, "the filter cannot be used")
        else:
            logger.error(text, left, "Redis is away")

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            while self._ends:
                if self.unasked:
                    if not await self._claim_unasked():
                        return
                    continue  # there may be more of them, and of pages that link to those
                ending, found = next(iter(self._ends.items()))
                items = list(found)
                if not await self._link.end(ending, items):
                    return
                self._stats.inc_value(f"urifilter/{_STATS[ending.command]}", len(items))
                for item in items:
                    del found[item]
                if not found:
                    self._ends.pop(ending, None)
        finally:
            self._task = None

    async def _claim_unasked(self) -> bool:
        """Claim what is fetched without a question, as far as nobody has or had it; return whether the filter knows."""
        claimed = dict(self.unasked)
        if not await self._link.claim(claimed):
            return False
        for item in claimed:
            self.unasked.pop(item, None)
        return True

    def _forget(self, items: Iterable[str | bytes]) -> None:
        self.end(FORGET, [item for item in items if item not in self._link.passed])

    def _try_later(self, item: str | bytes, claiming: Claiming) -> None:
        """Release an item that has failed; reject it if it failed too often."""
        claim = self._link.claim_of(item)
        failures = 1 if claim is None else claim.failures + 1
        if claim is not None and failures >= claiming.failures:
            self._reject(claim, failures)
        else:
            self.end(Ending("release", claiming.delay_after(failures), failed=True), [item])

    def _reject(self, claim: Claim, failures: int) -> None:
        self.whole.pop(claim.item, None)
        logger.warning("Gave up %s after %d failures (URIFILTER_CLAIM_FAILURES)", url_of(claim), failures)
        self.end(Ending("reject", reason=f"failed {failures} times"), [claim.item])
