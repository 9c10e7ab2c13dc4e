"""The downloader middleware: it tells which downloads bring a page, and which fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from scrapy.exceptions import IgnoreRequest

from urifilter_redis.scrapy import engine
from urifilter_redis.scrapy.judge import Judge
from urifilter_redis.scrapy.link import Answer
from urifilter_redis.scrapy.marks import META, Mark, mark_in, mark_of, settled
from urifilter_redis.scrapy.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Self

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.spiders import Spider

__all__ = ["UriDownloaderMiddleware"]


class UriDownloaderMiddleware:
    """Gives back the addresses of failed downloads, and asks about requests that were let pass while Redis was away.

    A download has failed if it raised an exception, or if its status is one of ``URIFILTER_FAILED_CODES`` (by default
    ``RETRY_HTTP_CODES``), after all retries. Then the address is new again once the crawl has ended, and so are all
    addresses that redirected to it. With claims it is tried again later. The middleware belongs before all others
    (order 40).

    Args:
        crawler: the crawl.

    Example:
        >>> DOWNLOADER_MIDDLEWARES = {"urifilter_redis.scrapy.UriDownloaderMiddleware": 40}
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler, self._judge = crawler, Judge.of(crawler)
        self._judge.has_downloads = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the middleware of a crawl.

        Raises:
            ValueError: a setting is not possible.
        """
        return cls(crawler)

    def process_request(
        self,
        request: Request,
        spider: Spider | None = None,  # noqa: ARG002 - Scrapy 2.13 gives it
    ) -> Coroutine[Any, Any, None] | None:
        """Note that a download begins; ask about its request before, if nobody has."""
        if mark_in(request) is None:
            return None
        own = mark_of(request, self._judge.fingerprint(request))
        if own is not None and "later" in own:
            return self._ask(request, own)
        if own is not None:
            self._judge.take(request)  # if the scheduler has not asked the dupefilter, as for dont_filter
        self._judge.under_way.begin(request)
        return None

    def process_response(
        self,
        request: Request,
        response: Response,
        spider: Spider | None = None,  # noqa: ARG002 - likewise
    ) -> Response:
        """Note that there is a page, or that its status says that it failed."""
        if response.status in self._judge.options.failed:
            self._judge.under_way.failed(request, Outcome.FAILED)
        else:
            self._judge.under_way.fetched(request)
        return response

    def process_exception(
        self,
        request: Request,
        exception: Exception,
        spider: Spider | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Note that a page could not be had."""
        ignored = isinstance(exception, IgnoreRequest)  # by robots.txt, for example
        self._judge.under_way.failed(request, Outcome.REFUSED if ignored else Outcome.FAILED)

    async def _ask(self, request: Request, mark: Mark) -> None:
        passes = mark["later"] == Answer.PASS.value and self._judge.link.away
        answer = Answer.PASS if passes else await self._judge.ask(request, mark)
        if answer is Answer.SEEN:
            del request.meta[META]
            self._judge.filtered(request)
            raise IgnoreRequest("the filter has seen this request, which reached the scheduler while Redis was away")
        if answer is Answer.ASK:  # the spider closes; a scheduler on disk keeps the request for the next crawl
            engine.crawl(self._crawler, request)
            raise IgnoreRequest("Redis is away, and the spider closes")
        if answer is Answer.PASS:  # once, and not for copies
            request.meta[META] = settled(cast("Mark", request.meta[META]))
        self._judge.under_way.begin(request)
