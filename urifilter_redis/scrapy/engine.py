"""The parts of Scrapy's engine that Scrapy 2.13 to 2.19 have no public name for.

``missing`` says whether a later Scrapy has them under other names. Then the crawl must not begin, because pages would
be given back that are under way, or be lost.
"""

from __future__ import annotations

import asyncio
import operator
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import Scheduler
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

__all__ = [
    "close_spider",
    "crawl",
    "engine_of",
    "in_progress",
    "is_closing",
    "is_onsite",
    "missing",
    "nudge",
    "queued",
    "scraping",
    "unfetched",
]

#: The attributes of the engine that this module uses; those of the scraper's slot are there once the spider is open.
_NEEDED = ("_slot.closing", "_slot.inprogress", "_slot.nextcall", "_slot.scheduler", "scraper.slot")
_NEEDED_ONCE_OPEN = ("scraper.slot.active",)


def engine_of(crawler: Crawler) -> Any:
    """Return a crawl's engine; None before it is made."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.17 on
        return None


def missing(crawler: Crawler) -> list[str]:
    """Return the needed attributes that an engine lacks whose scheduler is open."""
    engine = engine_of(crawler)
    found = [each for each in _NEEDED if not _has(engine, each)]
    if not found and engine.scraper.slot is not None:
        found = [each for each in _NEEDED_ONCE_OPEN if not _has(engine, each)]
    # isinstance() takes every scheduler for one of these
    if not found and Scheduler in type(_slot(crawler).scheduler).__mro__ and not _has(engine, "_slot.scheduler.mqs"):
        found = ["_slot.scheduler.mqs"]
    return found


def _has(engine: Any, name: str) -> bool:
    try:
        operator.attrgetter(name)(engine)
    except AttributeError:
        return False
    return True


def _slot(crawler: Crawler) -> Any:
    return getattr(engine_of(crawler), "_slot", None)


def _scraper_slot(crawler: Crawler) -> Any:
    engine = engine_of(crawler)
    return None if engine is None else engine.scraper.slot


def is_closing(crawler: Crawler) -> bool:
    """Whether the spider is closing, or has been closed."""
    engine, slot = engine_of(crawler), _slot(crawler)
    return engine is not None and (engine.spider is None or (slot is not None and slot.closing is not None))


def close_spider(crawler: Crawler, reason: str) -> None:
    """Begin to close the spider."""
    engine = engine_of(crawler)
    if engine is None or is_closing(crawler):
        return
    if hasattr(engine, "close_spider_async"):
        asyncio.ensure_future(engine.close_spider_async(reason=reason))  # noqa: RUF006 - the engine waits for it
    elif not engine.running:  # before 2.14, an engine that was closed as it opened its spider runs for ever
        asyncio.get_running_loop().call_soon(close_spider, crawler, reason)
    else:
        engine.close_spider(engine.spider, reason)


def crawl(crawler: Crawler, request: Request) -> None:
    """Give a request to the scheduler, unless the spider is closed."""
    engine = engine_of(crawler)
    if engine is not None and engine.spider is not None:
        engine.crawl(request)


def nudge(crawler: Crawler) -> None:
    """Have the engine look soon whether there is something to do, or the spider is idle."""
    if not is_closing(crawler) and (slot := _slot(crawler)) is not None:
        slot.nextcall.schedule()


def is_onsite(crawler: Crawler, request: Request) -> bool:
    """Whether a request leads to the spider's site; Scrapy drops others."""
    if engine_of(crawler) is None or crawler.spider is None:
        return True
    offsite = crawler.get_downloader_middleware(OffsiteMiddleware)
    if offsite is None or request.dont_filter or request.meta.get("allow_offsite"):
        return True
    return bool(offsite.should_follow(request, crawler.spider))


def in_progress(crawler: Crawler) -> set[Request]:
    """Return the requests from their download to the end of their page."""
    slot = _slot(crawler)
    return set() if slot is None else slot.inprogress


def scraping(crawler: Crawler) -> set[Request]:
    """Return the requests whose pages go through callbacks, spider middlewares and item pipelines."""
    slot = _scraper_slot(crawler)
    return set() if slot is None else slot.active


def unfetched(crawler: Crawler) -> list[Request]:
    """Take the requests out of the scheduler's memory, where they end with the crawl; those on disk stay."""
    return _taken(crawler, "mqs")


def queued(crawler: Crawler) -> list[Request]:
    """Take the requests out of the queue that the scheduler of scrapy-redis has in Redis."""
    return _taken(crawler, "queue")


def _taken(crawler: Crawler, name: str) -> list[Request]:
    queue = getattr(getattr(_slot(crawler), "scheduler", None), name, None)
    found = []
    while queue is not None and (request := queue.pop()) is not None:
        found.append(request)
    return found
