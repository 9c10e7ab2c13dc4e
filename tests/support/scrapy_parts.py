"""The parts for Scrapy with as much of an engine as they see. Import this only where Scrapy is."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json

import scrapy
from scrapy import signals
from scrapy.exceptions import CloseSpider, DontCloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.test import get_crawler
from twisted.python.failure import Failure

from urifilter_redis import UriFilter
from urifilter_redis.scrapy import UriDupeFilter, UriFilterScheduler, UriSpiderMiddleware
from urifilter_redis.scrapy.crawl import Crawl

A, B, C = (f"https://example.com/{each}" for each in "abc")

#: A value that ``json.loads`` reads, and a walk of two frames a level does not get through.
DEEP = json.loads('{"a":' * 600 + "1" + "}" * 600)


class Spider(scrapy.Spider):
    """A spider with two callbacks."""

    name = "spider"

    def parse(self, response, **_): ...

    def about(self, response, depth): ...


def crawler_of(server, spider=scrapy.Spider, **settings):
    queue = "scrapy.pqueues.ScrapyPriorityQueue"  # the default asks the downloader
    given = {"URIFILTER_REDIS_URL": server.url, "URIFILTER_CAPACITY": 10_000, "URIFILTER_NAME": "news"}
    crawler = get_crawler(
        spider, given | {"SCHEDULER_PRIORITY_QUEUE": queue, "DUPEFILTER_CLASS": UriDupeFilter} | settings
    )
    crawler.spider = crawler._create_spider("spider")
    crawler.engine = Engine(crawler)
    return crawler


class Engine:
    """As much of Scrapy's engine as the parts see."""

    def __init__(self, crawler):
        self.spider, self.running, self.scheduler, self._send = (
            crawler.spider,
            True,
            None,
            crawler.signals.send_catch_log,
        )
        self.reason = None

    def crawl(self, request):
        told = {"request": request, "spider": self.spider}
        answers = self._send(signals.request_scheduled, dont_log=IgnoreRequest, **told)
        refused = any(isinstance(each, Failure) and each.check(IgnoreRequest) for _, each in answers)
        if not refused and not self.scheduler.enqueue_request(request):
            self._send(signals.request_dropped, **told)

    async def close_spider_async(self, *, reason):
        self.reason = reason


class Parts:
    """The parts of one crawl, and how a request goes through them."""

    def __init__(self, crawler):
        self.crawler, self.stats = crawler, crawler.stats
        self.middleware = UriSpiderMiddleware.from_crawler(crawler)
        self.scheduler = crawler.engine.scheduler = UriFilterScheduler.from_crawler(crawler)
        self.crawl = Crawl.of(crawler)

    def refuse(self, url):
        """From now on a signal's handler drops the requests for an address."""

        def handler(request):
            if request.url == url:
                raise IgnoreRequest

        self.crawler.signals.connect(handler, signals.request_scheduled, weak=False)

    def tell(self, signal, **told):
        """A part of Scrapy sends a signal."""
        self.crawler.signals.send_catch_log(signal, spider=None, **told)

    def enqueue(self, *requests):
        """The engine is given requests."""
        for each in requests:
            self.crawler.engine.crawl(each)

    async def queued(self, *requests):
        """Likewise, and they are answered; those that are new wait for their download."""
        self.enqueue(*requests)
        await self.answered()

    async def until(self, condition):
        """Wait until a condition holds."""
        while not condition():
            await asyncio.sleep(0.01)

    async def answered(self):
        """All that was enqueued is answered, and what is told in the background is told."""
        while self.scheduler.held:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        await self.crawl.outcomes.settle()

    def waiting(self):
        """The requests that wait for their download; it begins."""
        return list(iter(self.scheduler.next_request, None))

    async def found(self, *requests):
        """The requests whose download begins, of some that the engine is given."""
        await self.queued(*requests)
        return self.waiting()

    async def begun(self, request):
        """The download of a request that is new."""
        (new,) = await self.found(request)
        return new

    async def starts(self, *requests):
        """The requests of a start(), as the middleware passes them on."""

        async def start():
            for each in requests:
                yield each

        return [each async for each in self.middleware.process_start(start())]

    async def started(self, *requests):
        """The requests whose download begins, of a start()."""
        return await self.found(*await self.starts(*requests))

    def response(self, request, status=200):
        """There is a page."""
        response = Response(request.url, status=status, request=request)
        self.middleware.process_spider_input(response)
        return response

    def passed(self, response, *output):
        """What the callback of a page yields, as the middleware passes it on."""

        async def result():
            for each in output:
                if isinstance(each, Exception):
                    self.middleware.process_spider_exception(response, each)
                    raise each
                yield each

        return self.middleware.process_spider_output(response, result())

    async def yielded(self, response, *output):
        """What the callback of a page yields goes through the middleware; requests reach the engine after it."""
        passed = []
        with contextlib.suppress(KeyError, CloseSpider):
            async for each in self.passed(response, *output):
                passed.append(each)  # noqa: PERF401 - kept if it raises
        await self.queued(*(each for each in passed if isinstance(each, scrapy.Request)))

    async def item_ends(self, response, signal, **told):
        """A page has an item, which leaves the pipelines with a signal."""
        await self.yielded(response, {"an": "item"})
        self.tell(signal, item={}, response=response, **told)

    async def fetched(self, request, *output, status=200):
        """The page of a request, from its download to its end."""
        await self.yielded(self.response(request, status), *output)

    async def failed(self, request, error):
        """The download of a request ends with an error, after all middlewares."""
        assert request.errback(Failure(error)).value is error
        await self.answered()

    async def fails(self, request, how, *output):
        """A request fails; ``output`` is what its callback yields before it raises "half-way"."""
        if how == "exception":
            await self.failed(request, OSError())
        elif how == "status":
            await self.fetched(request, status=503)
        elif how == "pipeline":
            await self.item_ends(self.response(request), signals.item_error, failure=Failure(KeyError()))
        else:
            await self.fetched(request, *(output if how == "half-way" else ()), KeyError())

    async def idle(self):
        """Whether the spider stays open, after as many looks as it takes."""
        while True:
            told = self.crawler.signals.send_catch_log(
                signals.spider_idle, spider=self.crawler.spider, dont_log=DontCloseSpider
            )
            await self.answered()
            if not any(isinstance(getattr(each, "value", None), DontCloseSpider) for _, each in told):
                return False
            looked = self.crawl.reclaiming._task
            done, _ = await asyncio.wait([looked], timeout=0.5) if looked else ({1}, None)
            await self.answered()
            if not done or self.scheduler.has_pending_requests():
                return True

    def item(self, request):
        return self.crawl.item(request)

    def items(self, *urls):
        return [self.item(scrapy.Request(each)) for each in urls]

    def seen(self, *urls) -> list[bool]:
        """Whether the filter has the items of addresses; also when the crawl is closed."""
        with UriFilter.open("news", redis=self.crawler.settings["URIFILTER_REDIS_URL"]) as news:
            return news.contains_many(self.items(*urls))


@contextlib.asynccontextmanager
async def opened(crawler):
    """The parts of a crawl, open."""
    parts = Parts(crawler)
    await maybe_deferred_to_future(parts.scheduler.open(crawler.spider))
    try:
        yield parts
    finally:
        await maybe_deferred_to_future(parts.scheduler.close("finished"))


def run(server, test, **settings):
    """Run an async test of the parts of a crawl."""

    async def main():
        async with opened(crawler_of(server, **settings)) as parts:
            return await test(parts)

    return asyncio.run(main())


def in_a_crawl(server="any_server", **settings):
    """Run an async test while a crawl is open; its argument ``parts`` has the crawl's parts, others are fixtures.

    What stands behind the test's ``yield``, if it has one, runs when the crawl is closed. ``server`` names the fixture
    that has the server's ``url``; the test's argument ``settings``, if it has one, has more settings.
    """

    def decorated(test):
        _, *names = inspect.signature(test).parameters

        @functools.wraps(test)
        def run_test(**given):
            async def main():
                async with opened(crawler_of(given[server], **settings | given.get("settings", {}))) as parts:
                    running = test(parts, **{name: given[name] for name in names})
                    await (anext(running) if inspect.isasyncgen(running) else running)
                if inspect.isasyncgen(running):
                    assert await anext(running, parts) is parts, "the test has one yield"

            asyncio.run(main())

        wanted = dict.fromkeys([server, *names])
        run_test.__signature__ = inspect.Signature(
            [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in wanted]
        )
        return run_test

    return decorated


def seen(server, *items) -> list[bool]:
    with UriFilter.open("news", redis=server.url) as news:
        return news.contains_many(items)


def kept(server) -> set:
    """The items that crawls have left for the next one."""
    with UriFilter.open("news", redis=server.url) as news:
        return {each.item for each in news.in_flight() if each.holder.startswith("5c")}


def redirected(request, url, **more):
    """The request that Scrapy's redirect makes."""
    urls = [*request.meta.get("redirect_urls", []), request.url]
    return request.replace(url=url, meta=request.meta | {"redirect_urls": urls}, **more)
