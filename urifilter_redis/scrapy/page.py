"""Pages: which requests of a page are on their way to the scheduler, and whether its output is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis.scrapy import engine

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

__all__ = ["Page"]


class Page:
    """The output of a page, or of ``start()``: the tickets of its requests that were answered "new".

    Args:
        crawler: the crawl.
        response: the page; None for ``start()``.
    """

    def __init__(self, crawler: Crawler, response: Response | None) -> None:
        self._crawler, self.tickets = crawler, set[int]()
        self._requests: set[Request | None] = set()
        if response is not None:  # a middleware may have given it another request than Scrapy's; then it is one of all
            active = engine.scraping(crawler)
            self._requests = {response.request} if response.request in active else set(active)

    @property
    def is_done(self) -> bool:
        """Whether no part of Scrapy has a request of the page on its way to the scheduler."""
        return self._requests.isdisjoint(engine.scraping(self._crawler))
