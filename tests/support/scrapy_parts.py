"""The parts for Scrapy by themselves, with as much of an engine as they see. Import this only where Scrapy is."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import scrapy
from scrapy import signals
from scrapy.core.scraper import Slot
from scrapy.http import Response
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.test import get_crawler

from urifilter_redis import UriFilter
from urifilter_redis.scrapy import UriDupeFilter

A, B, C = (f"https://example.com/{each}" for each in "abc")


def crawler_of(server, spider=scrapy.Spider, **settings):
    given = {"URIFILTER_REDIS_URL": server.url, "URIFILTER_CAPACITY": 10_000, "URIFILTER_NAME": "news"} | settings
    crawler = get_crawler(spider, given)
    crawler.spider = crawler._create_spider("spider")
    crawler.engine = Engine(crawler)
    return crawler


class Engine:
    """As much of Scrapy's engine as the parts see: no page is done before ``pages_are_done`` says so."""

    def __init__(self, crawler):
        self.spider, self.scheduled, self._signals = crawler.spider, [], crawler.signals
        self.scraper = SimpleNamespace(slot=Slot())
        self.downloader = SimpleNamespace(middleware=SimpleNamespace(middlewares=()))
        nextcall = SimpleNamespace(schedule=lambda: None)
        self._slot = SimpleNamespace(closing=None, inprogress=set(), scheduler=None, nextcall=nextcall)

    def keep_in_memory(self, request):
        """Have a scheduler with this request in its queue in memory."""
        self._slot.scheduler = SimpleNamespace(mqs=SimpleNamespace(pop=iter([request, None]).__next__))

    def begin_closing(self):
        self._slot.closing = True

    def crawl(self, request):
        self._signals.send_catch_log(signals.request_scheduled, request=request, spider=self.spider)
        if not UriDupeFilter.from_spider(self.spider).request_seen(request):
            self.scheduled.append(request)


def pages_are_done(crawler):
    crawler.engine.scraper.slot.active.clear()
    crawler.signals.send_catch_log(signals.spider_idle, spider=crawler.spider)


@contextlib.asynccontextmanager
async def opened(crawler):
    """A dupefilter that is open."""
    dupefilter = UriDupeFilter.from_crawler(crawler)
    await maybe_deferred_to_future(dupefilter.open())
    try:
        yield dupefilter
    finally:
        await maybe_deferred_to_future(dupefilter.close("finished"))


def run(server, test, **settings):
    """Run an async test of a crawler and its open dupefilter."""

    async def main():
        crawler = crawler_of(server, **settings)
        async with opened(crawler) as dupefilter:
            return await test(crawler, dupefilter)

    return asyncio.run(main())


def seen(server, *items) -> list[bool]:
    with UriFilter.open("news", redis=server.url) as news:
        return news.contains_many(items)


async def passed(middleware, *requests, page=A):
    """What the spider middleware lets pass of a page."""

    async def result():
        for each in requests:
            yield each

    response = Response(page, request=scrapy.Request(page))
    middleware._crawler.engine.scraper.slot.active.add(response.request)
    return [each async for each in middleware.process_spider_output(response, result())]


def redirected(request, url):
    """The request that Scrapy's redirect makes."""
    urls = [*request.meta.get("redirect_urls", []), request.url]
    return request.replace(url=url, meta=request.meta | {"redirect_urls": urls})
