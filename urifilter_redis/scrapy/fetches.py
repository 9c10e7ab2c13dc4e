"""Fetches: each request from its download to the end of its page, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Any, NotRequired, TypedDict

from scrapy import Request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from urifilter_redis.scrapy.outcomes import Outcome, Outcomes

#: Why a page is fetched whatever the filter says: a start is by each crawl, another as its request says.
START, AGAIN = "start", "again"


class Mark(TypedDict):
    """What is known about a request that waits in a queue; schedulers can write it as JSON or by pickle.

    Attributes:
        items: the items that became "seen", or were claimed, for its page: its own, and those of the addresses that
            redirected to it.
        again: the page is fetched, and what it redirects to, whatever the filter says: why.
        visited: the items of the addresses that redirected to it, in their order, as often as each did.
        ask: the filter has to be asked about the request before its download; its own item is not in ``items``.
    """

    items: list[str | bytes]
    again: NotRequired[str]
    visited: NotRequired[list[str | bytes]]
    ask: NotRequired[bool]


class Fetch:
    """A request from its download to the end of its page; it is the request's errback meanwhile.

    Redirects and retries are copies and have this errback, whichever middleware made them. So a request that is
    enqueued tells which download it came from.

    Attributes:
        items: the items that end with its page.
        again: why what it redirects to is fetched whatever the filter says; empty: it is not.
        visited: the items of the addresses that redirected to it.
        is_sent: whether it reached the downloader.
        is_downloading: whether there is neither a page nor an error nor a request in its place.
        has_ended: whether the page has no more output.
        outcome: the outcome, as far as it is known.
        waiting: what the page yielded and is on its way to the scheduler, or to its answer.
        in_pipelines: the number of its items that are in pipelines.
    """

    def __init__(self, request: Request, mark: Mark, finish: Callable[[Fetch, Outcome], object]) -> None:
        self.request, self.items, self.again = request, mark["items"], mark.get("again", "")
        self.visited = mark.get("visited", [])
        self.errback, self._finish = request.errback, finish
        self.is_downloading, self.is_sent, self.has_ended = True, False, False
        self.outcome = Outcome.FAILED
        self.waiting: set[Request] = set()
        self.in_pipelines = 0

    def __call__(self, failure: Failure) -> Any:
        """Note that there is no page, or none for the callback, and do what the spider's own errback does."""
        if self.is_downloading:
            is_refused = isinstance(failure.value, IgnoreRequest) and not self.is_sent  # by robots.txt, for example
            self._finish(self, Outcome.REFUSED if is_refused else Outcome.FAILED)
        elif self.outcome is Outcome.DONE and not isinstance(failure.value, HttpError):  # a 404 is a page
            self.outcome = Outcome.FAILED  # a middleware has refused the page, and the callback never sees it
        return failure if self.errback is None else self.errback(failure)

    def is_redirect(self, request: Request) -> bool:
        """Whether a request that takes its place is a redirect: it may be that of a retry, which has dont_filter."""
        return self.is_downloading and request.meta.get("redirect_urls") != self.request.meta.get("redirect_urls")

    def outcome_of(self, dropped: Request) -> Outcome:
        """Return the outcome if a request is dropped that takes its place: a redirect's address was fetched."""
        return Outcome.DONE if self.request.url in dropped.meta.get("redirect_urls", ()) else Outcome.FAILED


class Fetches:
    """All fetches of a crawl."""

    def __init__(
        self, outcomes: Outcomes, failed: Container[int], starts: set[Request], stopped: Callable[[Fetch], object]
    ) -> None:
        self._outcomes, self._failed, self._starts, self._stopped = outcomes, failed, starts, stopped
        self._live: set[Fetch] = set()
        #: The fetch whose page yielded a request, until that is settled.
        self._pages: dict[Request, Fetch] = {}
        self._arriving: dict[Request, None] = {}
        self._looks = False

    @staticmethod
    def of(request: Request | None) -> Fetch | None:
        """Return the fetch of a request, or of the one that it is a copy of."""
        found = getattr(request, "errback", None)
        return found if isinstance(found, Fetch) else None

    def begin(self, request: Request, mark: Mark) -> Request:
        """Note that a download begins."""
        request.errback = fetch = Fetch(request, mark, self.finish)
        self._live.add(fetch)
        return request

    def sent(self, request: Request) -> None:
        """Note that a request reached the downloader."""
        if (fetch := self.of(request)) is not None:
            fetch.is_sent = True

    def received(self, response: Response) -> None:
        """Note that there is a page, or one that is no good; its callback comes next."""
        fetch = self.of(response.request)
        if fetch is not None and fetch.is_downloading:
            fetch.is_downloading, fetch.outcome = False, Outcome.DONE
            if response.status in self._failed:
                self.finish(fetch, Outcome.FAILED)

    def yielded(self, fetch: Fetch, each: object) -> None:
        """Note a request or an item of a page."""
        if isinstance(each, Request):
            fetch.waiting.add(each)
            self._pages[each] = fetch
        elif each is not None:
            fetch.in_pipelines += 1

    def raised(self, fetch: Fetch | None, error: BaseException | None) -> None:
        """Note that a callback or a pipeline raised an exception; CloseSpider is no failure of the page."""
        if fetch is not None and fetch.outcome is Outcome.DONE:
            stops = isinstance(error, CloseSpider | GeneratorExit | asyncio.CancelledError)
            fetch.outcome = Outcome.STOPPED if stops else Outcome.FAILED

    def end(self, fetch: Fetch | None) -> None:
        """Note that a page has no more output."""
        if fetch is not None:
            fetch.has_ended = True
            self._look(fetch)

    def item_ended(self, response: Any, failure: Failure | None = None) -> None:
        """Note that an item has left the pipelines; with ``failure`` one of them raised it."""
        fetch = self.of(getattr(response, "request", None))
        if fetch is not None:
            fetch.in_pipelines -= 1
            if failure is not None:
                self.raised(fetch, failure.value)
            self._look(fetch)

    def scheduled(self, request: Request) -> None:
        """Note a request that is on its way to the scheduler; a signal's handler may drop it, and tell nobody."""
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._look_for_dropped)
        self._arriving[request] = None

    def arrived(self, request: Request) -> Fetch | None:
        """Note that a request reached the scheduler, and give it its own errback; return what it was copied from."""
        self._arriving.pop(request, None)
        fetch = self.of(request)
        if fetch is not None:
            request.errback = fetch.errback
        return fetch

    def settle(self, request: Request) -> None:
        """Note that a request was answered, or needs no answer."""
        fetch = self._pages.pop(request, None)
        if fetch is not None:
            fetch.waiting.discard(request)
            self._look(fetch)

    def give_up(self, request: Request, outcome: Outcome) -> None:
        """Note that a request was lost to an error: the page that yielded it has this outcome, and is fetched again."""
        fetch = self._pages.get(request)
        if fetch is not None and fetch.outcome is Outcome.DONE:
            fetch.outcome = outcome
        self.settle(request)

    def replace(self, fetch: Fetch) -> None:
        """Note that another request takes the place of a fetch, and its items."""
        fetch.is_downloading = False
        self._forget(fetch)

    def finish(self, fetch: Fetch, outcome: Outcome) -> None:
        """End a fetch, unless it has ended."""
        fetch.is_downloading, fetch.outcome = False, outcome
        if fetch in self._live:
            self._forget(fetch)
            self._outcomes.note(fetch.items, outcome)
            if outcome is Outcome.STOPPED:
                self._stopped(fetch)

    def end_all(self, outcome: Outcome) -> None:
        """End all fetches, as the spider has nothing to do: those whose page has not ended have this outcome."""
        self._look_for_dropped()  # what is on its way now was dropped: nothing is enqueued later in the same turn
        for fetch in list(self._live):
            self.finish(fetch, fetch.outcome if fetch.has_ended else outcome)

    def _look(self, fetch: Fetch) -> None:
        if fetch.has_ended and not fetch.waiting and not fetch.in_pipelines:
            self.finish(fetch, fetch.outcome)

    def _forget(self, fetch: Fetch) -> None:
        self._live.discard(fetch)
        for each in fetch.waiting:
            self._pages.pop(each, None)
        fetch.waiting.clear()

    def _look_for_dropped(self) -> None:
        dropped, self._arriving, self._looks = self._arriving, {}, False
        for request in dropped:
            fetch = self.of(request)
            if fetch is not None and fetch.is_downloading:
                self.finish(fetch, fetch.outcome_of(request))
            self._starts.discard(request)
            self.settle(request)
