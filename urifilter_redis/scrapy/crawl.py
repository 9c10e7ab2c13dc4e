"""What the scheduler and the spider middleware of a crawl have in common."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.utils.misc import load_object

from urifilter_redis.scrapy.fetches import START, Fetch, Fetches
from urifilter_redis.scrapy.link import Link
from urifilter_redis.scrapy.options import Options, url_item
from urifilter_redis.scrapy.outcomes import Outcome, Outcomes

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: The attribute of a Scrapy crawler that has its crawl.
_ATTRIBUTE = "_urifilter_crawl"

#: The most requests that wait for an answer. Beyond it no more pages are read, so that an outage fills no memory.
MOST_HELD = 10_000

#: Seconds between two looks whether there is room, or the spider closes.
_PAUSE = 0.25


class Crawl:
    """The parts of one crawl."""

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None  # noqa: S101 - components are made after the stats
        self.crawler, self.stats = crawler, crawler.stats
        self.options = Options.of(crawler)
        #: The requests of ``start()`` that did not reach the scheduler yet.
        self.starts: set[Request] = set()
        self.link = Link(self.options, self.stats, lambda: self.is_stopping, self.close_spider)
        self.outcomes = Outcomes(self.options.claiming, self.link, self.stats)
        self.fetches = Fetches(self.outcomes, self.options.failed, self.starts, self._stopped)
        #: The scheduler; what takes over pages with claims, or None; what keeps them for the next crawl, or None. The
        #: scheduler sets all three.
        self.scheduler: Any = None
        self.reclaiming: Any = None
        self.keeping: Any = None
        self.has_middleware = False
        #: The items of requests that were taken over, until they reach the scheduler.
        self.taken_over: dict[Request, str | bytes] = {}
        self._nudge = Request("data:,", dont_filter=True)
        connect = crawler.signals.connect
        connect(self._opened, signals.spider_opened)
        connect(self._idle, signals.spider_idle)
        connect(self._scheduled, signals.request_scheduled)
        connect(self.fetches.sent, signals.request_reached_downloader)
        for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
            connect(self.fetches.item_ended, signal)

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """Return the crawl of a Scrapy crawler; a ValueError names a setting that is not possible."""
        crawl = vars(crawler).get(_ATTRIBUTE) or cls(crawler)
        setattr(crawler, _ATTRIBUTE, crawl)
        return cast("Self", crawl)

    @property
    def spider(self) -> Spider:
        """The spider, once there is one: there are requests, or it is idle."""
        assert self.crawler.spider is not None  # noqa: S101 - see above
        return self.crawler.spider

    @property
    def is_full(self) -> bool:
        """Whether too many requests wait for an answer."""
        return self.scheduler is not None and bool(self.scheduler.held >= MOST_HELD)

    async def wait_for_room(self) -> None:
        """Wait while too many requests wait for an answer, unless the spider is stopped."""
        while self.is_full and not self.is_stopping:  # noqa: ASYNC110 - no event says that the spider is stopped
            await asyncio.sleep(_PAUSE)

    def item(self, request: Request) -> str | bytes:
        """Return the item of a request; a key that makes no item closes the spider, and a TypeError names it."""
        if self.options.items == "url":
            return url_item(request, normalized=self.link.normalizes)
        if self.options.key is not None:
            item: object = self.options.key(request)
            if isinstance(item, str | bytes):
                return item
            self.close_spider("urifilter_error")
            raise TypeError(
                f"URIFILTER_KEY is a function that returns text or bytes, and not {item!r}, as of {request}"
            )
        assert self.crawler.request_fingerprinter is not None  # noqa: S101 - there are requests
        return self.crawler.request_fingerprinter.fingerprint(request).hex()

    def crawl(self, request: Request) -> None:
        """Give a request to the engine, unless the spider is closed."""
        if (engine := self._engine) is not None and engine.spider is not None:
            engine.crawl(request)

    def nudge(self) -> None:
        """Have the engine look whether there is something to do: by a request that a handler drops, which is public."""
        self.crawl(self._nudge)

    def close_spider(self, reason: str) -> None:
        """Begin to close the spider."""
        engine = self._engine
        if engine is None or engine.spider is None:
            return
        if hasattr(engine, "close_spider_async"):
            asyncio.ensure_future(engine.close_spider_async(reason=reason))  # noqa: RUF006 - the engine waits for it
        elif not engine.running:  # before 2.14, an engine that was closed as it opened its spider runs for ever
            asyncio.get_running_loop().call_later(_PAUSE, self.close_spider, reason)
        else:
            engine.close_spider(engine.spider, reason)

    def take_over(self, found: Sequence[tuple[Request, str | bytes]]) -> list[str | bytes]:
        """Schedule requests whose items this crawl has in flight already; return the items of dropped ones."""
        for request, item in found:
            self.taken_over[request] = item
            self.crawl(request)
        dropped = [item for request, item in found if self.taken_over.pop(request, None) is not None]
        return [] if self._engine is None or self._engine.spider is None else dropped

    @property
    def _engine(self) -> Any:
        """Scrapy's engine; None before it is made."""
        try:
            return self.crawler.engine
        except RuntimeError:  # from Scrapy 2.17 on
            return None

    @property
    def is_stopping(self) -> bool:
        """Whether the engine is being stopped, as by Ctrl-C."""
        return not self._engine.running

    def _stopped(self, fetch: Fetch) -> None:
        """Keep the request of a page that is not handled to its end; the next crawl fetches its starts by itself."""
        if self.keeping is not None and (fetch.items or fetch.again) and fetch.again != START:
            fetch.request.errback = fetch.errback
            self.keeping.note(fetch.request, fetch.items)

    def _scheduled(self, request: Request) -> None:
        if request is self._nudge:
            raise IgnoreRequest
        if self.reclaiming is not None:
            self.reclaiming.busy()
        self.fetches.scheduled(request)

    def _opened(self) -> None:
        if self.scheduler is None or not self.has_middleware:
            logger.error("Both parts are needed: ADDONS = {'urifilter_redis.scrapy.UriFilterAddon': 100}")
            self.close_spider("urifilter_error")
        places = self.crawler.settings.getwithbase("SPIDER_MIDDLEWARES").items()
        if first := misplaced({load_object(each).__name__: place for each, place in places if place is not None}):
            logger.warning("UriSpiderMiddleware needs the lowest of the SPIDER_MIDDLEWARES: %s has a lower one", first)

    def _idle(self) -> None:
        self.fetches.end_all(Outcome.FAILED)
        if self.reclaiming is not None and self.reclaiming.stays():
            raise DontCloseSpider


def misplaced(orders: dict[str, float]) -> str | None:
    """Return the spider middleware that is nearer to the engine than ours, given the place of each; None: none is."""
    first = min(orders, key=orders.__getitem__, default="")
    return first if orders.get("UriSpiderMiddleware", -math.inf) > orders.get(first, 0) else None
