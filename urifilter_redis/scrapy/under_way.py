"""Downloads under way: which requests are being fetched and scraped, and how each has come to an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from scrapy.exceptions import CloseSpider

from urifilter_redis.scrapy import engine
from urifilter_redis.scrapy.marks import META, Mark, belongs, is_redirect, items_of, mark_in
from urifilter_redis.scrapy.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy import Request
    from scrapy.crawler import Crawler

__all__ = ["UnderWay"]


class _Fetch:
    """A request from its download to the end of its page.

    Attributes:
        request: the request.
        mark: its mark, which retries and redirects copy.
        outcome: its outcome, as far as it is known; a response that ends in another middleware is a failure.
        heir: the retry or redirect that took its place.
    """

    def __init__(self, request: Request, mark: Mark) -> None:
        self.request, self.mark = request, mark
        self.outcome, self.heir = Outcome.FAILED, cast("Request | None", None)


class UnderWay:
    """Notes the outcome of each request once Scrapy is done with its page.

    Args:
        crawler: the crawl.
        fingerprint: makes the fingerprint of a request.
        note: is told the items of a request, and its outcome.
    """

    def __init__(
        self,
        crawler: Crawler,
        fingerprint: Callable[[Request], str],
        note: Callable[[Iterable[str | bytes], Outcome], object],
    ) -> None:
        self._crawler, self._fingerprint, self._note = crawler, fingerprint, note
        #: By the identity of their marks, which copies of ``meta`` share.
        self._fetches: dict[int, _Fetch] = {}

    @property
    def items(self) -> set[str | bytes]:
        """The items of all requests under way."""
        return {item for fetch in self._fetches.values() for item in fetch.mark["items"]}

    def begin(self, request: Request) -> None:
        """Note that a download begins."""
        mark = cast("Mark", request.meta[META])
        if belongs(request, self._fingerprint(request)) and not self._is_within(request):
            self._fetches[id(mark)] = _Fetch(request, mark)

    def fetched(self, request: Request) -> None:
        """Note that there is a page; its callback comes next."""
        if (fetch := self._of(request)) is not None and not self._is_within(request):
            fetch.outcome = Outcome.DONE

    def failed(self, request: Request, outcome: Outcome) -> None:
        """Note that there is no page, or one that is no good."""
        if self._is_within(request):
            return
        mark = mark_in(request)
        self._fetches.pop(id(mark), None)
        if mark is not None and "later" not in mark:
            self._note(items_of(request, self._fingerprint(request)), outcome)

    def raised(self, request: Request, exception: BaseException) -> None:
        """Note that a callback or an item pipeline raised an exception; CloseSpider is no failure of the page."""
        if (fetch := self._of(request)) is not None and fetch.outcome is Outcome.DONE:
            fetch.outcome = Outcome.STOPPED if isinstance(exception, CloseSpider) else Outcome.FAILED

    def replaced(self, request: Request) -> None:
        """Note a request that is given to the scheduler; a retry or a redirect takes the place of a download."""
        fetch = self._of(request)
        if fetch is None or not belongs(request, self._fingerprint(request)):
            return
        if engine.is_onsite(self._crawler, request):
            fetch.heir = request
        else:  # Scrapy drops it; the address was fetched, and leads to another site
            fetch.outcome = Outcome.DONE

    def refused(self, request: Request, *, failed: bool) -> None:
        """Note that a request was seen, or has failed before, that was to take the place of a download."""
        fetch = self._of(request)
        if fetch is None or fetch.heir is not request:
            return
        fetch.heir = None
        if is_redirect(request, fetch.mark) and not failed:  # the address that led here was fetched
            fetch.outcome = Outcome.DONE

    def goes_on(self, request: Request) -> bool:
        """Whether a request takes the place of a download that is made whatever the filter says."""
        fetch = self._of(request)
        return fetch is not None and fetch.heir is request and fetch.outcome is Outcome.FAILED and "again" in fetch.mark

    def look(self) -> None:
        """Note the outcomes of the requests that Scrapy is done with."""
        running = engine.in_progress(self._crawler)
        for key, fetch in list(self._fetches.items()):
            if fetch.request not in running:
                del self._fetches[key]
                if fetch.heir is None:
                    self._note(fetch.mark["items"], fetch.outcome)

    def _is_within(self, request: Request) -> bool:
        """Whether a callback itself downloads its page once more, by the engine: its own page has the outcome."""
        fetch = self._of(request)
        if fetch is None or request is fetch.request or request is fetch.heir:
            return False
        return fetch.request in engine.in_progress(self._crawler)

    def _of(self, request: Request) -> _Fetch | None:
        return self._fetches.get(id(request.meta.get(META)))
