"""The judge of a crawl: it asks about requests, and sees to it that no address is lost that was answered "new"."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from scrapy import signals
from scrapy.exceptions import DontCloseSpider, NotSupported

from urifilter_redis.errors import UriFilterError
from urifilter_redis.scrapy import engine
from urifilter_redis.scrapy.duplicates import Duplicates
from urifilter_redis.scrapy.ending import RECORD
from urifilter_redis.scrapy.endings import Endings
from urifilter_redis.scrapy.gathering import READING, WAIT
from urifilter_redis.scrapy.holding import Holding
from urifilter_redis.scrapy.ledger import Ledger
from urifilter_redis.scrapy.link import Answer, Link
from urifilter_redis.scrapy.marks import META, Mark, asks_again, items_of, mark_of, settled
from urifilter_redis.scrapy.opening import check_scrapy, misplaced, missing_part
from urifilter_redis.scrapy.options import Options
from urifilter_redis.scrapy.outcomes import Outcome, Outcomes
from urifilter_redis.scrapy.page import Page
from urifilter_redis.scrapy.payloads import Payloads
from urifilter_redis.scrapy.reclaiming import Reclaiming
from urifilter_redis.scrapy.under_way import UnderWay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.python.failure import Failure

    from urifilter_redis.scrapy.gathering import Gathering

__all__ = ["MOST_HELD", "Judge"]

logger = logging.getLogger(__name__)

#: The attribute of a crawler that has its judge.
_ATTRIBUTE = "_urifilter_judge"


#: The most requests that wait for an answer. Beyond it no more pages are read, so that an outage fills no memory.
MOST_HELD = 10_000

#: Seconds between two looks whether the spider closes.
_PAUSE = 0.25


class Judge:
    """Asks the filter about requests; the middlewares and the dupefilter of a crawl have one in common.

    Requests that were answered "new" go through the ledger to the scheduler, and through ``under_way`` to the end of
    their page. ``outcomes`` then tells the filter about it.

    Args:
        crawler: the crawl.
    """

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None  # noqa: S101 - components are made after the stats
        self.crawler, self.stats = crawler, crawler.stats
        self.options = Options.of(crawler)
        self.link = Link(
            self.options,
            self.stats,
            closing=lambda: engine.is_closing(crawler),
            close_spider=lambda reason: engine.close_spider(crawler, reason),
        )
        self.endings = Endings(self.link, self.stats)
        self.outcomes = Outcomes(self.options.claiming, self.endings, self.stats, self.link.passed)
        self.under_way = UnderWay(crawler, self.fingerprint, self.outcomes.note)
        self.ledger = Ledger()
        #: None without claims.
        self.reclaiming: Reclaiming | None = None
        if self.options.claiming is not None:
            parts = (self.link, self.endings, self.outcomes)
            self.reclaiming = Reclaiming(crawler, self.options.claiming, *parts, self._lost, self._take_over)
        #: The components of this crawl. The downloader middleware asks about requests that went on without an answer.
        self.has_dupefilter = self.has_pages = self.has_downloads = False
        #: The reader of ``start()``.
        self.start: Gathering | None = None
        self._holding = Holding(self._let_go)
        self._next_look: asyncio.TimerHandle | None = None
        self._payloads = Payloads(crawler, self.stats)
        #: The items of the pages that were fetched although they were seen: once in a crawl, as by Scrapy's own filter.
        self._again: set[str | bytes] = set()
        self._held = 0
        self._asking: dict[asyncio.Task[list[Answer]], list[str | bytes]] = {}
        #: Tells of a request that was dropped because it was seen.
        self.filtered = Duplicates(crawler, self.stats, debug=self.options.debug).tell
        self._closed = False
        crawler.signals.connect(self._open_at_last, signals.spider_opened)
        crawler.signals.connect(self._idle, signals.spider_idle)
        crawler.signals.connect(self.close, signals.spider_closed)
        crawler.signals.connect(self.under_way.replaced, signals.request_scheduled)
        crawler.signals.connect(self._item_failed, signals.item_error)

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """Return the judge of a crawl.

        Raises:
            ValueError: a setting is not possible.
        """
        judge = vars(crawler).get(_ATTRIBUTE) or cls(crawler)
        setattr(crawler, _ATTRIBUTE, judge)
        return cast("Self", judge)

    async def open(self) -> None:
        """Open the filter, or make it.

        Raises:
            NotSupported: Scrapy does not run in asyncio's event loop, or is a version that is too new.
            UriFilterError: the filter cannot be opened.
            ValueError: a setting is not possible.
        """
        check_scrapy(self.crawler)
        try:
            await self.link.open()
        except (UriFilterError, ValueError):
            await self.link.close()
            raise

    async def judge(self, requests: Sequence[Request], page: Page, *, starts: bool = False) -> list[bool]:
        """Ask about requests at once; return whether each is dropped because it was seen, and mark the others.

        With ``starts`` they are fetched whatever the filter says, and recorded.
        """
        seen = [False] * len(requests)
        asked = {
            n: self.item(each)
            for n, each in enumerate(requests)
            if (starts or not each.dont_filter) and engine.is_onsite(self.crawler, each)
        }
        for n in [n for n, item in asked.items() if item in self.outcomes.failed]:
            del asked[n]
            seen[n] = not requests[n].dont_filter
        if not asked or self._closed:
            return seen
        found = [(requests[n], item, starts or asks_again(requests[n])) for n, item in asked.items()]
        task = asyncio.ensure_future(self._answers(found, page))
        self._asking[task] = list(asked.values())
        self._held += len(asked)
        task.add_done_callback(self._answered)
        # Ctrl-C cancels start(). The call goes on then, because it may have inserted, and close() gives that back.
        for n, answer in zip(asked, await asyncio.shield(task), strict=True):
            seen[n] = answer is Answer.SEEN and not requests[n].dont_filter
        return seen

    def _answered(self, task: asyncio.Task[list[Answer]]) -> None:
        self._held -= len(self._asking.pop(task))

    async def wait_for_room(self) -> None:
        """Wait while too many requests wait for an answer, unless the spider closes."""
        while self._held >= MOST_HELD and not engine.is_closing(self.crawler):
            await asyncio.wait(self._asking, timeout=_PAUSE, return_when=asyncio.FIRST_COMPLETED)

    async def _answers(self, asked: Sequence[tuple[Request, str | bytes, bool]], page: Page) -> list[Answer]:
        if self.endings.forgets and not self.link.away:
            await self.endings.settle()
        payloads: dict[str | bytes, str | None] = {}
        for request, item, _ in asked:
            payloads.setdefault(item, self.payload(request))
        answers = await self.link.ask([item for _, item, _ in asked], payloads)
        self.stats.inc_value("urifilter/asked", len(asked))
        for n, (request, item, again) in enumerate(asked):
            if answers[n] is Answer.NEW and item in self.outcomes.failed:
                self.outcomes.give_back_again(item)
                answers[n] = Answer.SEEN
            elif again and self._may_pass(item, answers[n]):
                answers[n] = Answer.AGAIN
            if answers[n] is not Answer.SEEN:
                waits = None if request.dont_filter else page  # for the dupefilter, which is not asked about the former
                self._mark(request, [item], answers[n], waits, again=again)
        return answers

    def _may_pass(self, item: str | bytes, answer: Answer) -> bool:
        """Note that a page is fetched whatever the answer; return whether it is although it was seen."""
        is_first = item not in self._again
        self._again.add(item)
        return is_first and answer is Answer.SEEN

    def is_seen(self, request: Request) -> bool:
        """Whether the scheduler has to drop a request; the dupefilter's question."""
        fingerprint = self.fingerprint(request)
        mark = mark_of(request, fingerprint)
        if mark is not None and ("later" in mark or self.take(request)):
            return False
        if self._closed:  # start() may go on until the engine stops it
            return False
        again = asks_again(request) or self.under_way.goes_on(request)
        item, earlier = self.item(request), items_of(request, fingerprint)
        if item in self.outcomes.failed:
            answer = Answer.SEEN
        elif self.endings.forgets:  # "seen" may be no longer true as it arrives
            answer = Answer.ASK
        else:
            answer = self.link.ask_now(item, self.payload(request))
            self.stats.inc_value("urifilter/asked")
        if again and self._may_pass(item, answer):
            answer = Answer.AGAIN
        if answer is Answer.SEEN:
            self.under_way.refused(request, failed=item in self.outcomes.failed)
            return True
        if answer in {Answer.NEW, Answer.AGAIN} or self.has_downloads:
            self._mark(request, [*(each for each in earlier if each != item), item], answer, again=again)
        elif answer is not Answer.PASS:
            self._holding.add(request)
            return True
        else:  # nobody will say what becomes of it
            self.endings.add(RECORD, [item])
        return False

    async def ask(self, request: Request, mark: Mark) -> Answer:
        """Return the answer about a request that reached the scheduler without one."""
        lost = mark["later"] == Answer.DOUBT.value and mark["link"] != self.link.id
        answer = Answer.NEW
        if not lost:
            await self.endings.settle()
            item = mark["items"][-1]
            self.link.passed.pop(item, None)
            answer = Answer.SEEN
            if item not in self.outcomes.failed:
                (answer,) = await self.link.ask([item], {item: self.payload(request)})
            if "again" in mark and answer is Answer.SEEN:
                answer = Answer.AGAIN
        if answer is Answer.SEEN:  # the addresses that redirected to it were fetched
            led_to = Outcome.FAILED if mark["items"][-1] in self.outcomes.failed else Outcome.DONE
            self.outcomes.note(mark["items"][:-1], led_to)
        else:
            self._mark(request, mark["items"], answer, again="again" in mark)
        return answer

    def take(self, request: Request) -> bool:
        """Take a marked request out of the ledger, because it reached the scheduler; return whether it was there."""
        mark = cast("Mark", request.meta[META])
        if "ticket" not in mark or self.ledger.take(mark["ticket"]) is None:
            return False
        request.meta[META] = settled(mark)
        return True

    def drop(self, request: Request) -> None:
        """Give back a request's item if it was dropped on its way to the scheduler."""
        mark = mark_of(request, self.fingerprint(request))
        if mark is not None and "ticket" in mark and (items := self.ledger.take(mark["ticket"])) is not None:
            self.outcomes.note(items, self._dropped)

    def end(self, page: Page) -> None:
        """Note that a page has no more output, and look after pages that are done."""
        self.ledger.end(page)
        self.look()
        if self._next_look is None and not self._closed:  # Scrapy is not quite done with this page
            self._next_look = asyncio.get_running_loop().call_later(WAIT, self.look)

    def look(self) -> None:
        """Note the outcomes of requests that Scrapy is done with, and of those that did not reach the scheduler."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self.under_way.look()
        self.outcomes.note(self.ledger.dropped(), self._dropped)

    def is_held(self, request: Request) -> bool:
        """Whether a request waits until Redis is back."""
        return request in self._holding.requests

    def clear(self) -> None:
        """Empty the filter, if ``URIFILTER_CLEAR`` allows it; otherwise warn, and give back what the queue has.

        The scheduler of scrapy-redis empties its queue after this.

        Raises:
            UriFilterError: the server is away.
        """
        if not self.options.clear:
            logger.warning(
                "Filter %r is kept, because other crawls may share it; set URIFILTER_CLEAR to empty it at each clear()",
                self.options.name,
            )
            self._give_back_requests(engine.queued(self.crawler))
            return
        self.ledger.clear()
        self.link.clients.drop()

    async def close(self) -> None:
        """Give back all requests that no longer will be fetched, and close the filter."""
        if self._closed:
            return
        self._closed = True
        self.link.last_calls()
        self._holding.stop()
        if self.start is not None and self.start is not READING.get():  # start() may have closed the spider itself
            self.start.close()
        if self._asking:
            await asyncio.wait(self._asking)
        if self.reclaiming is not None:
            await self.reclaiming.stop()
        unfetched = engine.unfetched(self.crawler)
        all_asked = await self._ask_at_last([*unfetched, *self._holding.requests])
        self.look()
        self.outcomes.note(self.ledger.clear(), Outcome.STOPPED)
        self._give_back_requests(unfetched)
        self.outcomes.end()
        await self.endings.finish(commits=all_asked)
        self._tell_of_unfetched(sum(each.dont_filter and not self._is_recorded(each) for each in unfetched))
        await self.link.close()

    def fingerprint(self, request: Request) -> str:
        """Return the fingerprint of a request as hex text."""
        assert self.crawler.request_fingerprinter is not None  # noqa: S101 - likewise
        return self.crawler.request_fingerprinter.fingerprint(request).hex()

    def item(self, request: Request) -> str | bytes:
        """Return the item of a request."""
        return self.fingerprint(request) if self.options.key is None else self.options.key(request)

    def payload(self, request: Request) -> str | None:
        """Return the text by which another crawl can fetch a request; None without claims."""
        return None if self.options.claiming is None else self._payloads.of(request)

    def _give_back_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            items = items_of(request, self.fingerprint(request))
            if items and request.meta[META].get("later") in {Answer.ASK.value, Answer.DOUBT.value}:
                items = items[:-1]  # nobody was told that the last one is new
            self.outcomes.note(items, Outcome.STOPPED)

    def _is_recorded(self, request: Request) -> bool:
        """Whether the filter has, or had, a request's own item: it is no request with ``dont_filter``, or a start."""
        return mark_of(request, self.fingerprint(request)) is not None

    def _tell_of_unfetched(self, unfiltered: int) -> None:
        """Warn of pages that no later crawl may find, given the number of unfetched requests with ``dont_filter``."""
        if self.outcomes.unfetched:
            self.stats.inc_value("urifilter/unfetched", self.outcomes.unfetched)
        if self.outcomes.unfetched and self.options.claiming is None:
            logger.warning(
                "%d pages were found and not fetched. They are new again, but the pages that link to them are seen, so "
                "a later crawl may not find them: crawls that are stopped need JOBDIR or URIFILTER_CLAIM",
                self.outcomes.unfetched,
            )
        if unfiltered:
            logger.warning("%d requests with dont_filter were not made, and are lost", unfiltered)

    async def _ask_at_last(self, requests: Sequence[Request]) -> bool:
        """Give back the items of requests that the filter may have inserted, if it has; return whether it knows all.

        With claims it is told of those, too, that nobody was asked about: the pages that lead to them are committed.
        """
        asked = [each for each in requests if self._is_left(each)]
        items = {self.item(each): self.payload(each) for each in asked}
        answers = await self.link.ask(list(items), items)
        new = [item for item, answer in zip(items, answers, strict=True) if answer is Answer.NEW]
        self.outcomes.note(new, Outcome.STOPPED)
        return all(answer in {Answer.NEW, Answer.SEEN} for answer in answers)

    def _is_left(self, request: Request) -> bool:
        """Whether the filter has to be asked about a request that ends with the crawl."""
        if self.options.claiming is None:
            return self.item(request) in self.link.doubts
        return "later" in (mark_of(request, self.fingerprint(request)) or {})

    def _mark(
        self,
        request: Request,
        items: list[str | bytes],
        answer: Answer,
        page: Page | None = None,
        *,
        again: bool = False,
    ) -> None:
        items = items[:-1] if answer is Answer.AGAIN else items  # the last one is another's to end
        mark = Mark(of=self.fingerprint(request), url=request.url, items=items)
        if again:
            mark["again"] = True
        if answer in {Answer.NEW, Answer.AGAIN}:
            self.stats.inc_value("urifilter/new" if answer is Answer.NEW else "urifilter/again")
            if page is not None:
                mark["ticket"] = self.ledger.add(items, page)
        elif answer is Answer.PASS:
            mark["later"] = answer.value
            self.stats.inc_value("urifilter/unasked")
        else:
            mark |= {"later": answer.value, "link": self.link.id}
        request.meta[META] = mark

    async def _let_go(self, requests: Sequence[Request]) -> None:
        """Ask about requests that were held, and schedule those that are new."""
        page = Page(self.crawler, None)
        for request, seen in zip(requests, await self.judge(requests, page), strict=True):
            del self._holding.requests[request]
            if seen:
                self.filtered(request, signal=False)
            else:
                engine.crawl(self.crawler, request)
        self.end(page)

    def _take_over(self, found: Sequence[tuple[Request, str | bytes]]) -> None:
        """Schedule requests whose items this crawl has in hand already; the dupefilter lets them pass."""
        page = Page(self.crawler, None)
        for request, item in found:
            self._mark(request, [item], Answer.NEW, page)
            engine.crawl(self.crawler, request)
            self.drop(request)
        self.end(page)

    @property
    def _dropped(self) -> Outcome:
        """The outcome of requests that do not reach the scheduler."""
        return Outcome.STOPPED if engine.is_closing(self.crawler) else Outcome.DROPPED

    def _lost(self) -> set[str | bytes]:
        """Return the items in hand of requests that vanished: an extension can drop one, and tell nobody."""
        asked = {item for items in self._asking.values() for item in items}
        return self.link.clients.held - self.endings.items - self.ledger.items - self.under_way.items - asked

    async def _open_at_last(self) -> None:
        """Open the filter for a scheduler that does not open its dupefilter, and check that the parts are together."""
        for each in misplaced(self.crawler.settings):
            logger.warning(each)
        parts = {"dupefilter": self.has_dupefilter, "pages": self.has_pages, "downloads": self.has_downloads}
        if missing := missing_part(self.options, **parts):
            logger.error(missing)
            engine.close_spider(self.crawler, "urifilter_error")
            return
        try:
            await self.open()
        except (NotSupported, UriFilterError, ValueError) as error:
            logger.error("The filter cannot be opened: %s", error)  # noqa: TRY400 - the message says it all
            engine.close_spider(self.crawler, "urifilter_error")

    def _item_failed(self, response: Response | None, failure: Failure) -> None:
        if response is not None and response.request is not None and failure.value is not None:  # none: of start()
            self.under_way.raised(response.request, failure.value)

    def _idle(self) -> None:
        self.look()
        if self._holding.requests or (self.reclaiming is not None and self.reclaiming.stays()):
            raise DontCloseSpider
