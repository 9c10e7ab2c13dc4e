"""The spider middleware: it asks about all requests of a page at once, and the reactor goes on meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Request

from urifilter_redis.scrapy.gathering import Gathering
from urifilter_redis.scrapy.judge import Judge, Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.spiders import Spider

__all__ = ["UriSpiderMiddleware"]


class UriSpiderMiddleware:
    """Drops the requests of a page that the filter has seen; ``UriDupeFilter`` lets the others pass without asking.

    A batch ends at 500 objects, or 50 ms after its first request, or with the page. The middleware belongs next to the
    engine (order 10), so that other middlewares drop their requests before.

    Args:
        crawler: the crawl.

    Example:
        >>> SPIDER_MIDDLEWARES = {"urifilter_redis.scrapy.UriSpiderMiddleware": 10}
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler, self._judge = crawler, Judge.of(crawler)
        self._judge.has_pages = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware of a crawl.

        Raises:
            ValueError: a setting is not possible.
        """
        return cls(crawler)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass on the output of ``start()`` that is new."""
        page = Page(self._crawler, None)
        async for each in self._new(start, page):
            yield each
            if isinstance(each, Request):  # the engine schedules a request before it wants the next
                self._judge.drop(page, each)

    async def process_spider_output(
        self,
        response: Response,
        result: AsyncIterator[Any],
        spider: Spider | None = None,  # noqa: ARG002 - Scrapy 2.13 gives it
    ) -> AsyncIterator[Any]:
        """Pass on the output of a page that is new."""
        async for each in self._new(result, Page(self._crawler, response)):
            yield each

    async def _new(self, source: AsyncIterator[Any], page: Page) -> AsyncIterator[Any]:
        gathering = Gathering(source)
        try:
            while batch := await gathering.batch():
                seen = iter(await self._judge.judge([each for each in batch if isinstance(each, Request)], page))
                for each in batch:
                    if isinstance(each, Request) and next(seen):
                        self._judge.filtered(each)
                    else:
                        yield each
        finally:
            gathering.close()
            self._judge.end(page)
