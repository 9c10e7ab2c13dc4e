"""The parts of Scrapy's engine that Scrapy 2.13 to 2.19 have no public name for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

__all__ = ["close_spider", "crawl", "engine_of", "in_progress", "is_closing", "is_scraped", "scraping", "unfetched"]


def engine_of(crawler: Crawler) -> Any:
    """Return a crawl's engine; None before it is made."""
    try:
        return crawler.engine
    except RuntimeError:  # from Scrapy 2.17 on
        return None


def _slot(crawler: Crawler) -> Any:
    return getattr(engine_of(crawler), "_slot", None)


def _scraper_slot(crawler: Crawler) -> Any:
    engine = engine_of(crawler)
    return None if engine is None else engine.scraper.slot


def is_closing(crawler: Crawler) -> bool:
    """Whether the spider is closing, or has been closed."""
    slot = _slot(crawler)
    return engine_of(crawler) is not None and (slot is None or slot.closing is not None)


def close_spider(crawler: Crawler, reason: str) -> None:
    """Begin to close the spider."""
    engine = engine_of(crawler)
    if engine is None or engine.spider is None or is_closing(crawler):
        return
    if hasattr(engine, "close_spider_async"):
        asyncio.ensure_future(engine.close_spider_async(reason=reason))  # noqa: RUF006 - the engine waits for it
    else:
        engine.close_spider(engine.spider, reason)


def crawl(crawler: Crawler, request: Request) -> None:
    """Give a request to the scheduler, unless the spider is closed."""
    engine = engine_of(crawler)
    if engine is not None and engine.spider is not None:
        engine.crawl(request)


def in_progress(crawler: Crawler) -> set[Request]:
    """Return the requests from their download to the end of their page."""
    slot = _slot(crawler)
    return set() if slot is None else slot.inprogress


def scraping(crawler: Crawler) -> set[Request]:
    """Return the requests whose pages go through callbacks, spider middlewares and item pipelines."""
    slot = _scraper_slot(crawler)
    return set() if slot is None else slot.active


def is_scraped(crawler: Crawler) -> bool:
    """Whether no page is being scraped."""
    slot = _scraper_slot(crawler)
    return slot is None or slot.is_idle()


def unfetched(crawler: Crawler) -> list[Request]:
    """Take the requests out of the scheduler's memory, where they end with the crawl; those on disk stay."""
    queue = getattr(getattr(_slot(crawler), "scheduler", None), "mqs", None)
    found = []
    while queue is not None and (request := queue.pop()) is not None:
        found.append(request)
    return found
