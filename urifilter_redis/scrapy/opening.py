"""Opening: a crawl that could not work is refused before it begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scrapy import __version__
from scrapy.exceptions import NotSupported
from scrapy.utils.misc import load_object

from urifilter_redis.scrapy import engine

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from urifilter_redis.scrapy.options import Options

__all__ = ["check_scrapy", "misplaced", "missing_part"]


def check_scrapy(crawler: Crawler) -> None:
    """Check that the parts can work with this Scrapy.

    Raises:
        NotSupported: Scrapy does not run in asyncio's event loop, or is a version that is too new.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NotSupported("urifilter_redis.scrapy needs Scrapy's asyncio reactor: remove TWISTED_REACTOR") from None
    if missing := engine.missing(crawler):
        raise NotSupported(
            f"urifilter_redis.scrapy does not know Scrapy {__version__}, whose engine has no "
            f"{', '.join(missing)}: install Scrapy 2.13 to 2.19"
        )


def missing_part(options: Options, *, dupefilter: bool, pages: bool, downloads: bool) -> str | None:
    """Return the reason why a crawl with these parts could not work; None if it can."""
    if pages and not dupefilter:
        return "UriSpiderMiddleware needs DUPEFILTER_CLASS = 'urifilter_redis.scrapy.UriDupeFilter'"
    if options.claiming is not None and not (dupefilter and pages and downloads):
        return "URIFILTER_CLAIM needs all three parts: ADDONS = {'urifilter_redis.scrapy.UriFilterAddon': 100}"
    return None


def misplaced(settings: BaseSettings) -> list[str]:
    """Return what is wrong with the places of the two middlewares."""
    found, spider, downloader = [], _orders(settings, "SPIDER"), _orders(settings, "DOWNLOADER")
    place = spider.get("UriSpiderMiddleware")
    if place is not None and place > min(spider.values()):
        first = min(spider, key=spider.__getitem__)
        found.append(
            f"UriSpiderMiddleware needs the lowest number in SPIDER_MIDDLEWARES: {place} is above that of {first}, "
            "which drops requests after the filter has them"
        )
    place, retries = downloader.get("UriDownloaderMiddleware"), downloader.get("RetryMiddleware")
    if place is not None and retries is not None and place > retries:
        found.append(
            f"UriDownloaderMiddleware needs a lower number in DOWNLOADER_MIDDLEWARES than {place}: RetryMiddleware has "
            f"{retries}, and pages count as failed before they are tried again"
        )
    return found


def _orders(settings: BaseSettings, kind: str) -> dict[str, float]:
    """Return the place of each middleware, by its class's name."""
    places = settings.getwithbase(f"{kind}_MIDDLEWARES").items()
    return {load_object(each).__name__: place for each, place in places if place is not None}
