"""The dupefilter: it lets pass what the spider middleware has asked about, and asks about everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.utils.defer import deferred_from_coro

from urifilter_redis.scrapy.judge import Judge

if TYPE_CHECKING:
    from typing import Self

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.spiders import Spider
    from twisted.internet.defer import Deferred

__all__ = ["UriDupeFilter"]


class UriDupeFilter:
    """Scrapy's dupefilter (setting ``DUPEFILTER_CLASS``), for Scrapy's scheduler and that of scrapy-redis.

    It may be used alone: then each request costs a round trip, in which the reactor waits.

    Args:
        crawler: the crawl.

    Example:
        >>> DUPEFILTER_CLASS = "urifilter_redis.scrapy.UriDupeFilter"
    """

    def __init__(self, crawler: Crawler) -> None:
        self._judge = Judge.of(crawler)
        self._judge.has_dupefilter = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the dupefilter of a crawl; Scrapy's scheduler calls this.

        Raises:
            ValueError: a setting is not possible.
        """
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Make the dupefilter of a spider's crawl; the scheduler of scrapy-redis calls this.

        Raises:
            ValueError: a setting is not possible.
        """
        return cls(spider.crawler)

    def open(self) -> Deferred[None]:
        """Open the filter, or make it.

        The result's errors: NotSupported if Scrapy does not run in asyncio's event loop, and a UriFilterError if the
        filter cannot be opened.
        """
        return deferred_from_coro(self._judge.open())

    def request_seen(self, request: Request) -> bool:
        """Return whether the scheduler has to drop a request.

        If the middlewares have not asked about it, the reactor waits for the answer, for ``URIFILTER_TIMEOUT`` (3 s)
        at most.
        """
        return self._judge.is_seen(request)

    def log(self, request: Request, spider: Spider) -> None:  # noqa: ARG002 - as Scrapy gives it
        """Log and count a request that was dropped."""
        if not self._judge.is_held(request):
            self._judge.filtered(request, signal=False)

    def clear(self) -> None:
        """Empty the filter if ``URIFILTER_CLEAR`` is set; otherwise warn, and leave it as it is.

        The scheduler of scrapy-redis calls this as a spider closes, unless ``SCHEDULER_PERSIST`` is set.

        Raises:
            UriFilterError: the server is away.
        """
        self._judge.clear()

    def close(self, reason: str = "") -> Deferred[None]:  # noqa: ARG002 - as Scrapy gives it
        """Make unfetched addresses new again, and close the filter."""
        return deferred_from_coro(self._judge.close())
