"""The spider middleware: it tells which requests are starts, and how the page of each request has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request
from scrapy.http import Response

from urifilter_redis.scrapy.crawl import Crawl

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class UriSpiderMiddleware:
    """Notes starts, responses, and what their pages yield; it drops nothing.

    It belongs next to the engine (order 10): requests that other middlewares drop are then none of the page's.

    Example:
        >>> SPIDER_MIDDLEWARES = {"urifilter_redis.scrapy.UriSpiderMiddleware": 10}
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawl = Crawl.of(crawler)
        self._crawl.has_middleware = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware of a crawl; a ValueError names a setting that is not possible."""
        return cls(crawler)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass on the output of ``start()``; its requests are recorded, and fetched even if they were seen."""
        async for each in start:
            await self._crawl.wait_for_room()
            if isinstance(each, Request):
                self._crawl.starts.add(each)
            yield each

    def process_spider_input(self, response: Response, **_: object) -> None:
        """Note that there is a page, or that its status says that it failed; Scrapy 2.13 gives the spider, too."""
        self._crawl.fetches.received(response)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], **_: object
    ) -> AsyncIterator[Any]:
        """Pass on the output of a page, and note it; wait before it while too many requests wait for an answer."""
        crawl = self._crawl
        fetch = crawl.fetches.of(response.request)
        await crawl.wait_for_room()
        try:
            async for each in result:
                if crawl.is_full:
                    await crawl.wait_for_room()
                if fetch is not None:
                    crawl.fetches.yielded(fetch, each)
                yield each
        except BaseException as error:
            crawl.fetches.raised(fetch, error)
            raise
        finally:
            crawl.fetches.end(fetch)

    def process_spider_exception(self, response: Response, exception: Exception, **_: object) -> None:
        """Note that a callback raised an exception: its page has failed."""
        fetch = self._crawl.fetches.of(response.request)
        self._crawl.fetches.raised(fetch, exception)
        self._crawl.fetches.end(fetch)
