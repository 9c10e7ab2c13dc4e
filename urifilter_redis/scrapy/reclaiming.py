"""Reclaiming: an idle spider takes over pages that other crawls have left, and stays open while others have some."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from scrapy import signals

from urifilter_redis.protocol.claims import MOST_DELAY
from urifilter_redis.scrapy import engine, payloads
from urifilter_redis.scrapy.endings import Ending
from urifilter_redis.scrapy.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request

    from urifilter_redis.engine.hand import Claim
    from urifilter_redis.scrapy.judge import Judge
    from urifilter_redis.scrapy.options import Claiming

__all__ = ["Reclaiming"]

logger = logging.getLogger(__name__)

#: The most pages that a crawl takes over at once.
MOST = 100

#: Seconds between two looks of an idle spider.
PAUSE = 1.0


class Reclaiming:
    """Asks the filter whenever the spider is idle.

    Pages that this spider cannot fetch are parked: released for ten minutes each time. It does not wait for them.

    Args:
        judge: the judge of the crawl.
        claiming: the settings of claims.
    """

    def __init__(self, judge: Judge, claiming: Claiming) -> None:
        self._judge, self._claiming = judge, claiming
        self._parked: dict[str | bytes, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._may_close = False
        judge.crawler.signals.connect(self._busy, signals.request_scheduled)

    def stays(self) -> bool:
        """Whether a spider that is idle has to stay open; the look that decides it goes on in the background."""
        if self._may_close:
            self._may_close = False
            return False
        if self._task is None:
            self._park(self._lost(), "a part of this crawl dropped its request, and did not say so")
            self._task = asyncio.ensure_future(self._look())
        return True

    async def stop(self) -> None:
        """Look no more."""
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    def _busy(self) -> None:
        self._may_close = False

    def _lost(self) -> set[str | bytes]:
        """Return the items in hand of requests that did not come to an end: an extension can make them vanish."""
        judge = self._judge
        known = judge.endings.items | judge.ledger.items | judge.items_asked | judge.under_way.items
        return judge.link.clients.held - known

    async def _look(self) -> None:
        try:
            await self._judge.endings.settle()
            if claims := await self._judge.link.reclaim(MOST):
                await self._take_over(claims)
            elif await self._others_work():
                await asyncio.sleep(PAUSE)
            else:
                self._may_close = True
        finally:
            self._task = None
            engine.nudge(self._judge.crawler)

    async def _take_over(self, claims: Iterable[Claim]) -> None:
        page = Page(self._judge.crawler, None)
        for claim in claims:
            self._judge.stats.inc_value("urifilter/reclaimed")
            if self._judge.outcomes.is_worth_trying(claim) and (request := self._request_of(claim)) is not None:
                self._judge.mark_new(request, [claim.item], page)
                engine.crawl(self._judge.crawler, request)
                self._judge.drop(page, request)
        self._judge.end(page)
        await self._judge.endings.settle()

    def _request_of(self, claim: Claim) -> Request | None:
        """Return the request of a claim; None if it is parked."""
        spider = self._judge.crawler.spider
        assert spider is not None  # noqa: S101 - it is idle
        try:
            name, url = payloads.named(claim.payload)
            if claim.lapses >= self._claiming.lapses:
                self._judge.stats.inc_value("urifilter/parked")
                self._park([claim.item], f"{url} killed {claim.lapses} crawls, it seems: commit or forget it, or wait")
                return None
            request = payloads.to_request(claim.payload, spider) if name == spider.name else None
        except ValueError as error:
            self._judge.stats.inc_value("urifilter/unreadable")
            self._park([claim.item], f"it cannot be fetched: {error}")
            return None
        if request is None or not engine.is_onsite(self._judge.crawler, request):
            self._park([claim.item], None)  # another spider's
            return None
        return request

    def _park(self, items: Iterable[str | bytes], why: str | None) -> None:
        """Release items for ten minutes, and say why, if there is something to say."""
        until = time.monotonic() + MOST_DELAY
        for item in items:
            if why is not None:
                logger.warning("%s is set aside for ten minutes: %s", item, why)
            self._parked[item] = until
            self._judge.endings.add(Ending("release", MOST_DELAY), [item])

    async def _others_work(self) -> bool:
        """Whether others have pages in hand that may come to this spider soon, or Redis has to say so yet."""
        found = await self._judge.link.outstanding()
        if found is None:
            return self._judge.options.on_error == "pause"
        now = time.monotonic()
        self._parked = {item: until for item, until in self._parked.items() if until > now}
        if found.due is None or found.others <= len(self._parked):
            return False
        # What is due later is parked by others: everybody else beats within a lease, and failures come sooner.
        return found.due <= max(self._judge.link.clients.lease, self._claiming.longest_delay)
