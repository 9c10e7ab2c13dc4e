"""The downloader middleware: an address whose download failed for good is new again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from scrapy import signals
from scrapy.exceptions import IgnoreRequest

from urifilter_redis.scrapy import engine
from urifilter_redis.scrapy.judge import Judge
from urifilter_redis.scrapy.link import Answer
from urifilter_redis.scrapy.marks import META, Mark, items_of, mark_of

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
    ``RETRY_HTTP_CODES``), after all retries. Then the address is new again, and so are all addresses that redirected to
    it. The middleware belongs before all others (order 40).

    Args:
        crawler: the crawl.

    Example:
        >>> DOWNLOADER_MIDDLEWARES = {"urifilter_redis.scrapy.UriDownloaderMiddleware": 40}
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler, self._judge = crawler, Judge.of(crawler)
        self._judge.has_downloads = True
        self._judge.looks.append(self._look)
        #: The downloads under way, by the identity of their marks, which retries and redirects copy.
        self._under_way: dict[int, tuple[Request, Mark]] = {}
        crawler.signals.connect(self._replaced, signals.request_scheduled)

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
        if META not in request.meta:
            return None
        own = mark_of(request, self._judge.fingerprint(request))
        if own is not None and "later" in own:
            return self._ask(request, own)
        if own is not None:
            self._judge.take(request)  # if the scheduler has not asked the dupefilter, as for dont_filter
        self._begin(request)
        return None

    def process_response(
        self,
        request: Request,
        response: Response,
        spider: Spider | None = None,  # noqa: ARG002 - likewise
    ) -> Response:
        """Give back the addresses of a page whose status says that it failed."""
        self._end(request, failed=response.status in self._judge.options.failed)
        return response

    def process_exception(
        self,
        request: Request,
        exception: Exception,  # noqa: ARG002 - any means that there is no page
        spider: Spider | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Give back the addresses of a page that could not be had."""
        self._end(request, failed=True)

    async def _ask(self, request: Request, mark: Mark) -> None:
        answer = Answer.PASS if mark["later"] == Answer.PASS.value else await self._judge.ask(request, mark)
        if answer is Answer.SEEN:
            del request.meta[META]
            self._judge.filtered(request)
            raise IgnoreRequest("the filter has seen this request, which reached the scheduler while Redis was away")
        if answer is Answer.ASK:  # the spider closes; a scheduler on disk keeps the request for the next crawl
            engine.crawl(self._crawler, request)
            raise IgnoreRequest("Redis is away, and the spider closes")
        if answer is Answer.PASS:  # once, and not for copies
            now = cast("Mark", request.meta[META])
            request.meta[META] = Mark(of=now["of"], url=now["url"], items=now["items"])
        self._begin(request)

    def _begin(self, request: Request) -> None:
        mark = cast("Mark", request.meta[META])
        if items_of(request, self._judge.fingerprint(request)):
            self._under_way[id(mark)] = (request, mark)

    def _end(self, request: Request, *, failed: bool) -> None:
        mark = cast("Mark | None", request.meta.get(META))
        self._under_way.pop(id(mark), None)
        if failed and mark is not None and "later" not in mark:
            self._judge.give_back(items_of(request, self._judge.fingerprint(request)))

    def _replaced(self, request: Request) -> None:
        """Note that a retry or a redirect takes the place of a download."""
        self._under_way.pop(id(request.meta.get(META)), None)

    def _look(self) -> None:
        """Give back the addresses of downloads that ended in another middleware's ``process_response``."""
        running = engine.in_progress(self._crawler)
        for key, (request, _) in list(self._under_way.items()):
            if request not in running:
                del self._under_way[key]
                self._judge.give_back(items_of(request, self._judge.fingerprint(request)))
