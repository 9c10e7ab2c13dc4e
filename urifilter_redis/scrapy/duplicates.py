"""Duplicates: requests that were dropped because they were seen are logged, counted and signalled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.utils.request import referer_str

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector

__all__ = ["Duplicates"]

logger = logging.getLogger(__name__)


class Duplicates:
    """Tells of duplicates as Scrapy's own filter does.

    Args:
        crawler: the crawl.
        stats: the crawl's stats.
        debug: whether every one is logged, and not only the first.
    """

    def __init__(self, crawler: Crawler, stats: StatsCollector, *, debug: bool) -> None:
        self._crawler, self._stats, self._debug = crawler, stats, debug
        self._log_next = True

    def tell(self, request: Request, *, signal: bool = True) -> None:
        """Log and count a request that was dropped; with ``signal`` send ``request_dropped``."""
        for_all = "" if self._debug else " - no more duplicates will be shown (see DUPEFILTER_DEBUG)"
        if self._debug or self._log_next:
            text = "Filtered duplicate request: %(request)s (referer: %(referer)s)%(more)s"
            told = {"request": request, "referer": referer_str(request), "more": for_all}
            logger.debug(text, told, extra={"spider": self._crawler.spider})
        self._log_next = False
        self._stats.inc_value("dupefilter/filtered")
        if signal:
            self._crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self._crawler.spider)
