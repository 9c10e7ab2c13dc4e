"""Claims: a spider that is idle, or runs low, takes over what other crawls have left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from scrapy import Request

from urifilter_redis.engine.holdings import AFTER_DUE, Claim
from urifilter_redis.protocol.claims import PARKED
from urifilter_redis.scrapy.crawl import Crawl
from urifilter_redis.scrapy.keeping import holder_of
from urifilter_redis.scrapy.link import LONGEST_LEASE, Ending
from urifilter_redis.scrapy.options import Claiming
from urifilter_redis.scrapy.payloads import to_request, waits_for

logger = logging.getLogger(__name__)

#: The most pages that a crawl takes over at once.
MOST = 100

#: Seconds between two looks that find nothing.
PAUSE = 1.0


class Reclaiming:
    """Asks the filter whenever the spider is idle; and when it runs low, if crawls share what they have.

    Pages that this spider cannot fetch are parked: released for ten minutes each time. It does not wait for them.
    """

    def __init__(self, crawl: Crawl, claiming: Claiming) -> None:
        self._crawl, self._claiming = crawl, claiming
        self._parked: dict[str | bytes, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_idle, self._may_close, self._stopped = False, False, asyncio.Event()

    def stays(self) -> bool:
        """Whether a spider that is idle has to stay open; the look that decides it goes on in the background."""
        if self._may_close:
            self._may_close = False
            return False
        self._is_idle = True
        if self._task is None:
            lost = self._crawl.link.held - self._crawl.outcomes.ending
            self._park(lost, "a part of this crawl dropped its request, and did not say so")
            self._task = asyncio.ensure_future(self._look(is_idle=True))
        return True

    def runs_low(self) -> None:
        """Look while the spider works, because few of its pages wait; an idle one looks by itself."""
        if self._task is None and not self._is_idle:
            self._task = asyncio.ensure_future(self._look(is_idle=False))

    async def stop(self) -> None:
        """Look no more; what a look that is under way still brings stays in flight."""
        self._stopped.set()
        if self._task is not None:  # cancelled, it would leave pages that nobody gets before their lease is over
            await asyncio.wait([self._task])

    def busy(self) -> None:
        """Note that there is something to do."""
        self._is_idle = self._may_close = False

    async def _look(self, *, is_idle: bool) -> None:
        crawl = self._crawl
        try:
            await crawl.outcomes.settle()
            crawl.outcomes.may_ask_again()
            limit = min(MOST, max(1, crawl.scheduler.room))  # links may have come meanwhile
            claims = [] if self._stopped.is_set() else await self._without_kept(await crawl.link.reclaim(limit))
            if self._stopped.is_set():
                return
            if claims:
                crawl.stats.inc_value("urifilter/reclaimed", len(claims))
                found = [(self._request_of(claim), claim.item) for claim in claims]
                self._park(crawl.take_over([(each, item) for each, item in found if each is not None]), None)
                await crawl.outcomes.settle()
            elif not is_idle or await self._others_work():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE):
                        await self._stopped.wait()
            else:
                self._may_close = True
        finally:
            self._task = None
            crawl.nudge()

    async def _without_kept(self, claims: list[Claim]) -> list[Claim]:
        """Give what other spiders have kept for their next crawls, and what has lapsed since, back to those.

        A crawl without claims finds it with the holder of its spider's name alone. It may be claimed for that holder as
        soon as it is released, and is never new, so that it is not lost if this process dies before.
        """
        kept: dict[str, dict[str | bytes, str]] = {}
        others: list[Claim] = []
        for claim in claims:
            name = waits_for(claim.payload)
            if name is None or name == self._crawl.spider.name:
                others.append(claim)
            else:
                kept.setdefault(name, {})[claim.item] = claim.payload
        for name, payloads in kept.items():
            if await self._crawl.link.end(Ending("release"), list(payloads)):
                await self._crawl.link.keep(holder_of(name), payloads)
                self._parked |= dict.fromkeys(payloads, time.monotonic() + LONGEST_LEASE)  # nobody waits for them
        return others

    def _request_of(self, claim: Claim) -> Request | None:
        """Return the request of a claim; None if it is rejected or parked."""
        whole = self._crawl.outcomes.whole.get(claim.item)
        try:
            request = to_request(claim.payload, self._crawl.spider) if whole is None else whole.copy()
        except ValueError as error:
            self._crawl.stats.inc_value("urifilter/unreadable")
            self._park([claim.item], f"it cannot be fetched: {error}")
            return None
        if request is None:
            self._park([claim.item], None)  # another spider's
        elif claim.lapses >= self._claiming.lapses:
            self._crawl.stats.inc_value("urifilter/parked")
            self._park(
                [claim.item], f"{request.url} killed {claim.lapses} crawls, it seems: commit or forget it, or wait"
            )
        elif self._crawl.outcomes.is_worth_trying(claim):
            return request
        return None

    def _park(self, items: Iterable[str | bytes], why: str | None) -> None:
        """Release items for ten minutes, and say why, if there is something to say."""
        until = time.monotonic() + PARKED
        for item in items:
            if why is not None:
                logger.warning("%s is set aside for ten minutes: %s", item, why)
            self._parked[item] = until
            self._crawl.outcomes.end(Ending("release", PARKED), [item])

    async def _others_work(self) -> bool:
        """Whether others have pages in flight that may come to this spider soon, or Redis has to say so yet."""
        found = await self._crawl.link.outstanding()
        if found is None:
            return self._crawl.options.on_error == "pause"
        now = time.monotonic()
        self._parked = {item: until for item, until in self._parked.items() if until > now}
        if found.due is None or found.others <= len(self._parked):
            return False
        # What is due later is parked by others: everybody else beats within a lease, and failures come sooner. The look
        # itself, for which ``due`` may wait, comes AFTER_DUE.
        return found.due <= max(self._crawl.link.lease, self._claiming.longest_delay) + 2 * AFTER_DUE
