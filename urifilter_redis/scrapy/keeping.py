"""Keeping: what waits as a spider closes stays in Redis, for the next crawl of that spider."""

from __future__ import annotations

import hashlib
import logging
import secrets

from scrapy import Request

from urifilter_redis.protocol.claims import InFlight
from urifilter_redis.scrapy.crawl import Crawl
from urifilter_redis.scrapy.payloads import kept_of, to_request

logger = logging.getLogger(__name__)

#: The most requests that are kept by one close: a queue of millions would fill the memory of Redis.
MOST_KEPT = 100_000

#: The most requests of a call.
MOST = 500

#: With this begins the item of a request with ``dont_filter``, which has none of its own.
UNFILTERED = "urifilter: dont_filter "


def holder_of(name: str) -> str:
    """Return the holder that has what spiders of a name have left: 16 hex digits."""
    return "5c" + hashlib.blake2b(name.encode(), digest_size=7).hexdigest()


class Keeping:
    """Claims what waits at a clean close, as a holder of the spider's name, and takes it up as a crawl begins.

    While the crawl runs, nothing is claimed, so no call is added. A commit takes a request up: of several crawls one.
    """

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._waiting: dict[str | bytes, Request] = {}
        self._beyond = 0
        #: Whether nobody has looked yet what an earlier crawl has left.
        self.is_due = True

    def note(self, request: Request, items: list[str | bytes]) -> None:
        """Note a request that is not fetched any more, and the items that would have ended with its page."""
        own = f"{UNFILTERED}{secrets.token_hex(8)}" if not items else self._own(request, items)
        if len(self._waiting) < MOST_KEPT:
            self._waiting[own] = request
        else:
            self._beyond += 1

    async def keep(self) -> None:
        """Claim what was noted: its items were forgotten before. Say how much is kept, and how much cannot be."""
        kept, lost, found = 0, self._beyond, list(self._waiting.items())
        for first in range(0, len(found), MOST):
            payloads = {item: self._payload(request) for item, request in found[first : first + MOST]}
            asked = {item: text for item, text in payloads.items() if text is not None}
            answers = await self._crawl.link.keep(holder_of(self._crawl.spider.name), asked)
            lost += len(payloads) - len(asked) + answers.count(None)
            kept += answers.count(True)
        self._waiting.clear()
        if kept:
            self._crawl.stats.inc_value("urifilter/kept", kept)
            logger.info("%d pages that were found and not fetched are kept for the next crawl of this spider", kept)
        if lost:
            logger.warning(
                "%d pages were found and not fetched, and cannot be kept. They are new again, but the pages that link "
                "to them are seen, so a later crawl may not find them: such crawls need JOBDIR or URIFILTER_CLAIM",
                lost,
            )

    async def take_up(self) -> list[tuple[Request, str | bytes | None]]:
        """Return what earlier crawls of this spider have left, each request with its item; None: it has none."""
        link, holder = self._crawl.link, holder_of(self._crawl.spider.name)
        found = await link.kept(holder)
        if found is None:  # Redis is away
            return []
        self.is_due, taken = False, []
        requests = {each.item: request for each in found if (request := self._request(each)) is not None}
        items = list(requests)
        for first in range(0, len(items), MOST):
            some = items[first : first + MOST]
            answers = await link.take(holder, some)
            taken += [item for item, answer in zip(some, answers, strict=True) if answer]
            self.is_due = self.is_due or None in answers
        if taken:
            self._crawl.stats.inc_value("urifilter/taken_up", len(taken))
            logger.info("%d pages that an earlier crawl of this spider has left are fetched", len(taken))
        return [(requests[item], None if str(item).startswith(UNFILTERED) else item) for item in taken]

    def _own(self, request: Request, items: list[str | bytes]) -> str | bytes:
        """Return the item of a request, in the spelling in which the filter was told of it."""
        own = self._crawl.item(request)
        return next((each for each in items if self._crawl.link.is_one(each, own)), items[-1])

    def _payload(self, request: Request) -> str | None:
        text, lost = kept_of(request, self._crawl.spider, waits=True)
        if lost:
            if not self._crawl.stats.get_value("urifilter/url_only"):
                logger.warning("%s is kept for parse(), without %s - no more of these will be shown", request, lost)
            self._crawl.stats.inc_value("urifilter/url_only")
        return text

    def _request(self, each: InFlight) -> Request | None:
        """Return the request that was kept; None if it cannot be read: it stays where it is."""
        try:
            return to_request(each.payload, self._crawl.spider)
        except ValueError as error:
            self._crawl.stats.inc_value("urifilter/unreadable")
            logger.warning("%s was kept by an earlier crawl, and cannot be fetched: %s", each.item, error)
            return None
