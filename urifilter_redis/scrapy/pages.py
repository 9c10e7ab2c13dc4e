"""The spider middleware: it asks about all requests of a page at once, and the reactor goes on meanwhile."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from scrapy import Request

from urifilter_redis.scrapy import engine
from urifilter_redis.scrapy.gathering import Gathering
from urifilter_redis.scrapy.judge import Judge
from urifilter_redis.scrapy.page import Page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
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
        """Pass on the output of ``start()``; its requests are recorded, and fetched even if they were seen."""
        page, gathering = Page(self._crawler, None), Gathering(start)
        self._judge.start = gathering
        try:
            async with aclosing(self._new(gathering, page, starts=True)) as new:
                async for each in new:
                    yield each
                    if (
                        isinstance(each, Request) and not each.dont_filter
                    ):  # the engine schedules a request before it wants the next
                        self._judge.drop(each)
        finally:
            if not engine.is_closing(self._crawler):  # otherwise the judge stops it
                gathering.close()

    async def process_spider_output(
        self,
        response: Response,
        result: AsyncIterator[Any],
        spider: Spider | None = None,  # noqa: ARG002 - Scrapy 2.13 gives it
    ) -> AsyncIterator[Any]:
        """Pass on the output of a page that is new."""
        await self._judge.wait_for_room()
        gathering = Gathering(result)
        try:
            async with aclosing(self._new(gathering, Page(self._crawler, response))) as new:
                async for each in new:
                    yield each
        finally:
            gathering.close()

    def process_spider_exception(
        self,
        response: Response,
        exception: Exception,
        spider: Spider | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Note that a callback raised an exception: its page has failed."""
        if response.request is not None:
            self._judge.under_way.raised(response.request, exception)

    async def _new(self, gathering: Gathering, page: Page, *, starts: bool = False) -> AsyncGenerator[Any, None]:
        try:
            while batch := await gathering.batch():
                await self._judge.wait_for_room()
                requests = [each for each in batch if isinstance(each, Request)]
                seen = iter(await self._judge.judge(requests, page, starts=starts))
                for each in batch:
                    if isinstance(each, Request) and next(seen):
                        self._judge.filtered(each)
                    else:
                        yield each
        finally:
            self._judge.end(page)
