"""The scheduler: it asks about the requests that gather, and gives those that are new to the project's own."""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from redis.exceptions import RedisError
from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler, Scheduler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.exceptions import NotSupported
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.internet.defer import Deferred

from urifilter_redis.scrapy.claims import Reclaiming
from urifilter_redis.scrapy.crawl import MOST_HELD, Crawl
from urifilter_redis.scrapy.fetches import AGAIN, START, Mark
from urifilter_redis.scrapy.keeping import Keeping
from urifilter_redis.scrapy.link import Answer
from urifilter_redis.scrapy.options import META
from urifilter_redis.scrapy.outcomes import Outcome
from urifilter_redis.scrapy.payloads import kept_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

#: The most requests of a call.
MOST = 500

#: The stats of requests that go on.
_STATS = {Answer.NEW: "urifilter/new", Answer.AGAIN: "urifilter/again", Answer.PASS: "urifilter/unasked"}


#: The most visits of an address in a chain of redirects. A second is usual: the first has set a cookie. What goes in a
#: circle would go on to REDIRECT_MAX_TIMES.
MOST_VISITS = 3

_NOT_WHOLE = (
    "%s cannot be kept whole for another crawl, which would give its page to parse() without %s - no more of these "
    "will be shown (see urifilter/url_only)"
)


class _Question(NamedTuple):
    """A request that waits for an answer.

    Attributes:
        earlier: the items that end with its page: those of the addresses that redirected to it.
        visited: the items of these addresses, also of those that are another's to end.
        again: why its page is fetched whatever the filter says; empty: it is not.
        is_late: whether it waited in the project's scheduler without an answer.
    """

    request: Request
    item: str | bytes
    earlier: list[str | bytes]
    visited: list[str | bytes]
    again: str
    is_late: bool = False


class UriFilterScheduler(BaseScheduler):
    """A scheduler around the project's own, which ``URIFILTER_SCHEDULER`` names; the add-on sets both.

    What is enqueued waits until the filter has answered: one call at a time asks about all that gathered, and what is
    new goes on. Requests with ``dont_filter`` go on at once, unless they are starts.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawl = crawl = Crawl.of(crawler)
        crawl.scheduler = self
        if crawl.options.claiming is not None:
            crawl.reclaiming = Reclaiming(crawl, crawl.options.claiming)
        elif not (crawler.settings.get("JOBDIR") or crawl.options.clear):  # both say what becomes of what waits
            crawl.keeping = Keeping(crawl)
        self._share = None if crawl.options.claiming is None else crawl.options.claiming.share
        settings = crawler.settings
        inner = load_object(settings.get("URIFILTER_SCHEDULER") or "scrapy.core.scheduler.Scheduler")
        self._inner: Any = build_from_crawler(inner, crawler)
        #: Whether Scrapy's own scheduler has requests in memory. (isinstance() takes every scheduler for one of these.)
        self._has_memory, self._has_disk = Scheduler in inner.__mro__, bool(settings.get("JOBDIR"))
        self._questions: deque[_Question] = deque()
        self._asked: list[_Question] = []
        #: Copies of the requests that are claimed and cannot be kept whole: another crawl would lose the rest of them.
        self._not_whole: weakref.WeakKeyDictionary[Request, Request] = weakref.WeakKeyDictionary()
        self._task: asyncio.Task[None] | None = None
        #: The items of the pages that were fetched although they were seen: once in a crawl, as by Scrapy's own filter.
        self._again: set[str | bytes] = set()
        self._is_open = self._is_closed = self._clears = False
        self._log = RFPDupeFilter(debug=settings.getbool("DUPEFILTER_DEBUG")).log

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the scheduler of a crawl."""
        return cls(crawler)

    @property
    def held(self) -> int:
        """The number of requests that wait for an answer."""
        return len(self._questions) + len(self._asked)

    @property
    def room(self) -> int:
        """How many more requests may wait for their download here."""
        return MOST_HELD if self._share is None else max(0, self._share - len(self._inner))

    def open(self, spider: Spider) -> Deferred[None]:
        """Open the filter, or make it, and the project's scheduler.

        The result's errors: a ValueError for a setting that is not possible, and UriFilterError.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NotSupported("URIFILTER needs Scrapy's asyncio reactor: remove TWISTED_REACTOR") from None
        return deferred_from_coro(self._open(spider))

    def close(self, reason: str) -> Deferred[None]:
        """Ask about what waits, keep what is unfetched, and close the project's scheduler and the filter."""
        return deferred_from_coro(self._close(reason))

    def has_pending_requests(self) -> bool:
        """Whether requests wait, for an answer or for their download."""
        return self.held > 0 or self._inner.has_pending_requests()

    def enqueue_request(self, request: Request) -> bool:
        """Take a request, to ask about it soon or pass it on; return False if it is dropped at once."""
        crawl, fetches = self._crawl, self._crawl.fetches
        fetch, is_start = fetches.arrived(request), request in crawl.starts
        crawl.starts.discard(request)
        if (taken := crawl.taken_over.pop(request, None)) is not None:
            return self._pass_on(request, Mark(items=[taken]))
        if self._is_closed:
            return False
        try:
            item = crawl.item(request)
        except Exception:  # Scrapy logs it, and goes on with the other links of the page
            fetches.give_up(request, Outcome.FAILED)
            raise
        again = START if is_start else AGAIN if request.meta.get(META) == AGAIN else ""
        if fetch is not None:
            own, takes_place = crawl.item(fetch.request), fetch.is_downloading
            if request.dont_filter and (item == own or takes_place) and not fetch.is_redirect(request):  # a retry
                fetches.replace(fetch)
                return self._pass_on(request, Mark(items=fetch.items, again=fetch.again, visited=fetch.visited))
            if takes_place:
                fetches.replace(fetch)
                visited = [*fetch.visited, own]
                self._ask_about(_Question(request, item, fetch.items, visited, again=again or fetch.again))
                return True
        if request.dont_filter and not is_start:
            is_taken = self._enqueue(request, Mark(items=[]))
            fetches.settle(request)
            return is_taken
        self._ask_about(_Question(request, item, [], [], again))
        return True

    def next_request(self) -> Request | None:
        """Return the next request of the project's scheduler; one that nobody was asked about has to wait."""
        crawl = self._crawl
        if self._share is not None and not self.held and 2 * self.room > self._share:
            crawl.reclaiming.runs_low()
        while self.held < MOST_HELD and (request := self._inner.next_request()) is not None:
            mark = _taken_mark(request)
            if mark is None:
                return cast("Request", request)
            if mark.get("ask"):
                more = mark.get("visited", []), mark.get("again", "")
                question = _Question(request, crawl.item(request), mark["items"], *more, is_late=True)
                if not (crawl.link.away and crawl.options.on_error == "pass"):
                    self._ask_about(question)
                    continue
                crawl.link.passed[question.item] = None
                self._put_in_flight(question, Answer.PASS)
                crawl.fetches.settle(request)
                mark = self._mark(question, Answer.PASS)
            return crawl.fetches.begin(request, mark)
        return None

    def clear(self) -> None:
        """Note that the project's scheduler is about to empty its queue; see ``UriDupeFilter``."""
        if self._crawl.options.clear:
            self._clears = True
            return
        logger.warning(
            "Filter %r is kept, because other crawls may share it; set URIFILTER_CLEAR to empty it at each clear()",
            self._crawl.options.name,
        )
        self._stop(_all_of(self._inner))

    async def _open(self, spider: Spider) -> None:
        await self._crawl.link.open()
        self._is_open = True
        if (opened := self._inner.open(spider)) is not None:
            await maybe_deferred_to_future(opened)
        await self._clear()
        await self._take_up()

    async def _close(self, reason: str) -> None:
        crawl, self._is_closed = self._crawl, True
        crawl.link.last_calls()
        if self._task is not None:
            await asyncio.wait([self._task])
        if crawl.reclaiming is not None:
            await crawl.reclaiming.stop()
        knows_all, unfiltered = await self._end_memory()
        if self._is_open and (closed := self._inner.close(reason)) is not None:
            await maybe_deferred_to_future(closed)
        await self._clear()
        crawl.fetches.end_all(Outcome.STOPPED)
        keep = None if crawl.keeping is None else crawl.keeping.keep
        await crawl.outcomes.finish(unfiltered, commits=knows_all, keep=keep)
        await crawl.link.close()

    async def _clear(self) -> None:
        if self._clears:
            self._clears = False
            await self._crawl.outcomes.settle()
            await self._crawl.link.drop()

    async def _take_up(self) -> None:
        """Take up what earlier crawls of this spider have left."""
        if self._crawl.keeping is None or not self._crawl.keeping.is_due:
            return
        waiting = deque(await self._crawl.keeping.take_up())
        try:
            while waiting:
                request, item = waiting.popleft()
                if item is None:
                    self._enqueue(request, Mark(items=[]))
                else:
                    self._pass_on(request, Mark(items=[item]))
        finally:  # the filter has committed them all
            for request, item in waiting:
                self._give_up(request, [] if item is None else [item], "")

    async def _end_memory(self) -> tuple[bool, int]:
        """Give back the items of requests that end with the crawl.

        Return whether the filter knows all that was found, and the number of requests that it never was to know. With
        claims it is told of those, too, that nobody was asked about: the pages that lead to them are committed.
        """
        if not self._is_open or not self._has_memory:
            return True, 0
        stats = self._crawl.stats
        dequeued = {name: stats.get_value(f"scheduler/dequeued{name}", 0) for name in ("", "/memory")}
        most = stats.get_value("scheduler/enqueued/memory", 0) - dequeued["/memory"] if self._has_disk else None
        late, unfiltered = self._stop(itertools.islice(_all_of(self._inner), most))  # memory comes before the disk
        for name, count in dequeued.items():  # these were not
            stats.set_value(f"scheduler/dequeued{name}", count)
        if self._crawl.options.claiming is None or not late:
            self._crawl.outcomes.unfetched += len(late)
            return True, unfiltered
        asked = {self._crawl.item(each): each for each in late}
        try:
            answers = await self._crawl.link.ask(list(asked), lambda item: self._payload(asked[item]))
        except Exception:
            logger.exception("The filter cannot be asked")
            return False, unfiltered
        new = [item for item, answer in zip(asked, answers, strict=True) if answer is Answer.NEW]
        self._crawl.outcomes.note(new, Outcome.STOPPED)
        return all(answer in {Answer.NEW, Answer.SEEN} for answer in answers), unfiltered

    def _stop(self, requests: Any) -> tuple[list[Request], int]:
        """Give back the items of requests; return those that nobody was asked about, and the number of others."""
        late, unfiltered, keeping = [], 0, self._crawl.keeping if self._is_closed else None
        for request in requests:
            mark = _taken_mark(request)
            if mark is None:
                unfiltered += 1
                if keeping is not None:
                    keeping.note(request, [])
                continue
            items = mark["items"]
            self._crawl.outcomes.note(items, Outcome.STOPPED)
            if mark.get("ask"):
                late.append(request)
                items = [*items, self._crawl.item(request)]
            again = mark.get("again", "")
            if again == START or not (items or again):
                continue
            if keeping is not None:
                keeping.note(request, items)
            elif not items:
                unfiltered += 1
        return late, unfiltered

    def _pass_on(self, request: Request, mark: Mark) -> bool:
        request.meta[META] = mark
        is_taken = self._enqueue(request, mark)
        if not mark.get("ask"):
            self._crawl.fetches.settle(request)
        if not is_taken:
            self._crawl.outcomes.note(mark["items"], Outcome.DROPPED)
        return is_taken

    def _enqueue(self, request: Request, mark: Mark) -> bool:
        """Give a request to the project's scheduler, which may raise an error: its disk is full, for example.

        If it cannot work, the spider closes, and the page is offered again; if it refuses a request, the page fails.
        """
        try:
            return bool(self._inner.enqueue_request(request))
        except Exception as error:
            is_away = isinstance(error, OSError | RedisError)
            unasked = [self._crawl.item(request)] if mark.get("ask") else []
            outcome = Outcome.STOPPED if is_away else Outcome.FAILED
            self._give_up(request, mark["items"], mark.get("again", ""), unasked, outcome)
            if is_away:
                self._crawl.close_spider("urifilter_error")
            raise

    def _give_up(
        self,
        request: Request,
        items: list[str | bytes],
        again: str,
        unasked: Sequence[str | bytes] = (),
        outcome: Outcome = Outcome.STOPPED,
    ) -> None:
        """Give back the items of a request that an error has lost, with this outcome.

        It is kept for the next crawl, with the ``unasked`` item that the filter may not have; or the page that yielded
        it has the same outcome, and is fetched again.
        """
        crawl = self._crawl
        crawl.outcomes.note(items, outcome)
        if crawl.keeping is None or again == START:
            crawl.fetches.give_up(request, outcome)
            return
        crawl.keeping.note(request, [*items, *unasked])
        crawl.fetches.settle(request)

    def _ask_about(self, question: _Question) -> None:
        self._questions.append(question)
        if self._task is None:
            self._task = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        """Ask about all that gathered, and what gathers meanwhile."""
        crawl = self._crawl
        answers: dict[str | bytes, Answer] = {}
        try:
            await asyncio.sleep(0)
            while self._questions:
                self._asked = [self._questions.popleft() for _ in range(min(MOST, len(self._questions)))]
                if crawl.outcomes.forgets and not crawl.link.away:  # "seen" may be no longer true as it arrives
                    await crawl.outcomes.settle()
                answers = await self._answers()
                if not crawl.link.away:  # it may have been as the crawl began
                    await self._take_up()
                while self._asked:
                    question = self._asked.pop(0)
                    answer = answers.get(question.item, Answer.SEEN)
                    if answer is not Answer.ASK:
                        answers.pop(question.item, None)  # an item that is there twice is new once
                    self._answer(question, answer)
                crawl.nudge()
        except Exception:
            logger.exception("The filter cannot be asked")
            crawl.close_spider("urifilter_error")
            for each in (*self._asked, *self._questions):
                is_new = answers.pop(each.item, None) is Answer.NEW
                self._give_up(each.request, [*each.earlier, *[each.item] * is_new], each.again, [each.item])
            self._questions.clear()
        finally:
            self._asked, self._task = [], None

    async def _answers(self) -> dict[str | bytes, Answer]:
        """Ask about the items that neither failed before nor wait in this crawl; return the answers to those."""
        crawl = self._crawl
        asked: dict[str | bytes, Request] = {}
        for each in self._asked:
            if each.is_late:
                crawl.link.passed.pop(each.item, None)
            if not (crawl.outcomes.knows(each.item) or self._visits(each)):
                asked.setdefault(each.item, each.request)
        if not asked:
            return {}
        crawl.stats.inc_value("urifilter/asked", len(self._asked))
        answers = await crawl.link.ask(list(asked), lambda item: self._payload(asked[item]))
        return dict(zip(asked, answers, strict=True))

    def _payload(self, request: Request) -> str | None:
        """Return the text by which another crawl can fetch a request; None if it is too long."""
        text, lost = kept_of(request, self._crawl.spider)
        if lost and request not in self._not_whole:
            self._not_whole[request] = request.copy()
            if not self._crawl.stats.get_value("urifilter/url_only"):
                logger.warning(_NOT_WHOLE, request, lost)
            self._crawl.stats.inc_value("urifilter/url_only")
        return text

    def _answer(self, question: _Question, answer: Answer) -> None:
        """Pass on a request that is new; drop one that was seen."""
        crawl, item = self._crawl, question.item
        has_failed, unfiltered = item in crawl.outcomes.failed, question.request.dont_filter
        if answer is Answer.SEEN and (visits := self._visits(question)):
            if visits < MOST_VISITS:
                mark = Mark(items=question.earlier, again=question.again, visited=question.visited)
                self._pass_on(question.request, mark)
                return
            has_failed = True
        elif answer is Answer.NEW and has_failed:
            crawl.outcomes.give_back_again(item)
            answer = Answer.SEEN
        elif question.again and answer in {Answer.NEW, Answer.SEEN} and (unfiltered or not has_failed):
            is_wanted = unfiltered or item not in self._again
            self._again.add(item)
            answer = Answer.AGAIN if is_wanted and answer is Answer.SEEN else answer
        if answer is not Answer.SEEN:
            if answer in _STATS:
                crawl.stats.inc_value(_STATS[answer])
            if answer is Answer.NEW and self._is_for_others(question):
                crawl.outcomes.share(item)
                crawl.fetches.settle(question.request)
                return
            self._put_in_flight(question, answer)
            self._pass_on(question.request, self._mark(question, answer))
            return
        if question.earlier:
            crawl.outcomes.note(question.earlier, Outcome.FAILED if has_failed else Outcome.DONE)
        crawl.fetches.settle(question.request)
        self._log(question.request, crawl.spider)
        crawl.crawler.signals.send_catch_log(signals.request_dropped, request=question.request, spider=crawl.spider)

    def _put_in_flight(self, question: _Question, answer: Answer) -> None:
        """Note that this crawl fetches what is new to it; with claims also what is fetched without an answer."""
        outcomes = self._crawl.outcomes
        if answer is Answer.PASS and question.is_late and self._crawl.options.claiming is not None:
            outcomes.unasked[question.item] = self._payload(question.request)
        elif answer is not Answer.NEW:
            return
        if (whole := self._not_whole.pop(question.request, None)) is not None:
            outcomes.whole[question.item] = whole
        if self._has_memory and not self._has_disk:
            outcomes.in_flight.add(question.item)

    def _visits(self, question: _Question) -> int:
        """Return how often the address of a request has redirected, in any spelling, in the chain that leads to it."""
        return sum(self._crawl.link.is_one(question.item, each) for each in question.visited)

    def _is_for_others(self, question: _Question) -> bool:
        """Whether a request goes to another crawl: there is no room, and another one can do what this one can."""
        return self.room == 0 and not (question.again or question.earlier or question.request in self._not_whole)

    def _mark(self, question: _Question, answer: Answer) -> Mark:
        """Return the mark of a request that goes on; what was seen, and is fetched again, is another's to end."""
        mark = Mark(items=question.earlier)
        if answer is Answer.NEW or (answer is Answer.PASS and question.is_late):
            mark["items"] = [*(each for each in question.earlier if each != question.item), question.item]
        elif answer is not Answer.AGAIN:
            mark["ask"] = True
        if question.again:
            mark["again"] = question.again
        if question.visited:
            mark["visited"] = question.visited
        return mark


class UriDupeFilter(BaseDupeFilter):
    """The dupefilter of the project's scheduler: it drops nothing, because ``UriFilterScheduler`` has asked before."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the dupefilter of a crawl; Scrapy's scheduler calls this."""
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Make the dupefilter of a spider's crawl; the scheduler of scrapy-redis calls this."""
        return cls(spider.crawler)

    def clear(self) -> None:
        """Empty the filter if ``URIFILTER_CLEAR`` is set; otherwise warn, and keep or give back what the queue has.

        The scheduler of scrapy-redis calls this before it empties its queue: as a spider closes, unless
        ``SCHEDULER_PERSIST`` is set, and as it opens with ``SCHEDULER_FLUSH_ON_START``.
        """
        scheduler = Crawl.of(self._crawler).scheduler
        if scheduler is not None:
            scheduler.clear()


def _all_of(scheduler: Any) -> Iterator[Request]:
    """Take all requests out of a scheduler."""
    while (request := scheduler.next_request()) is not None:
        yield request


def _taken_mark(request: Request) -> Mark | None:
    """Take the mark out of a request; None if it has none."""
    mark = request.meta.get(META)
    if not isinstance(mark, dict):
        return None
    del request.meta[META]
    return cast("Mark", mark)
