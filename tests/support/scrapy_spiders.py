"""Spiders and components of the crawls that are compared with Scrapy's own filter; ``scrapy_crawl`` runs them.

A spider has ``urls``, the addresses to start from. What its callbacks and errbacks see is counted in the stats, as
``saw/…``.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import scrapy
from scrapy import signals
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.http import FormRequest, HtmlResponse, JsonRequest
from scrapy.utils.defer import maybe_deferred_to_future


class Follow(scrapy.Spider):
    """Follows all links."""

    name, urls = "follow", ()

    async def start(self):
        for url in self.urls:
            yield scrapy.Request(url)

    def saw(self, what, response):
        self.crawler.stats.inc_value(f"saw/{what} {urlsplit(response.url).path} {response.status}")

    def links(self, response):
        return list(response.follow_all(css="a")) if isinstance(response, HtmlResponse) else []

    def parse(self, response, **_):
        self.saw("page", response)
        yield from self.links(response)


class Errbacks(Follow):
    """Asks for another page in place of one that fails, and for the same page once more."""

    name = "errbacks"

    def parse(self, response, **_):
        self.saw("page", response)
        for each in self.links(response):
            yield each.replace(errback=self.failed)

    def failed(self, failure):
        self.crawler.stats.inc_value(f"saw/failure {urlsplit(failure.request.url).path}")
        for path in ("/instead.html", urlsplit(failure.request.url).path):
            yield scrapy.Request(failure.request.url.replace(urlsplit(failure.request.url).path, path))


class RetriesItself(Follow):
    """Has each page that is bad downloaded once more, from its callback."""

    name = "retries_itself"

    def parse(self, response, **_):
        self.saw("page", response)
        if "bad" in response.url:
            retry = get_retry_request(response.request, spider=self, reason="bad")
            if retry is not None:
                yield retry
            return
        yield from self.links(response)


class Bodies(Follow):
    """Sends forms and JSON documents, each twice, to the address of each page."""

    name = "bodies"

    def parse(self, response, **_):
        self.saw("page", response)
        yield from self.links(response)
        for _ in range(2):
            yield FormRequest(response.url, formdata={"a": "1"}, callback=self.sent)
            yield FormRequest(response.url, formdata={"a": "2"}, callback=self.sent)
            yield JsonRequest(response.url, data={"a": 1, "b": 2}, callback=self.sent)
            yield JsonRequest(response.url, data={"b": 2, "a": 1}, callback=self.sent)
            yield scrapy.Request(response.url, method="HEAD", callback=self.sent)

    def sent(self, response):
        self.saw(response.request.method, response)


class Cookies(Follow):
    """Gives its links cookies and arguments; the second link to a page has others."""

    name = "cookies"

    def parse(self, response, number=None):
        self.saw(f"page {number}", response)
        for n, each in enumerate(self.links(response)):
            yield each.replace(cookies={"n": str(n)}, cb_kwargs={"number": n})


class Waits(Follow):
    """Its callback is an async generator that waits between its links."""

    name = "waits"

    async def parse(self, response, **_):
        self.saw("page", response)
        for each in self.links(response):
            yield each
            await asyncio.sleep(0.06)  # longer than links are gathered


class HalfWay(Follow):
    """Raises after the second link of each page that is bad."""

    name = "half_way"

    def parse(self, response, **_):
        self.saw("page", response)
        for n, each in enumerate(self.links(response)):
            if n == 2 and "bad" in response.url:
                raise KeyError("half-way")
            yield each


class Inline(Follow):
    """Downloads a page within the callback of each other page."""

    name = "inline"

    async def parse(self, response, **_):
        self.saw("page", response)
        engine, request = self.crawler.engine, scrapy.Request(response.urljoin("/inline.html"))
        if hasattr(engine, "download_async"):
            self.saw("inline", await engine.download_async(request))
        else:
            self.saw("inline", await maybe_deferred_to_future(engine.download(request)))
        for each in self.links(response):
            yield each


class OtherSites(Follow):
    """Follows links to other sites by ``dont_filter`` and ``allow_offsite``."""

    name = "other_sites"

    def parse(self, response, **_):
        self.saw("page", response)
        for each in self.links(response):
            yield each
            if "/unfiltered" in each.url:
                yield each.replace(dont_filter=True)
            if "/allowed" in each.url:
                yield each.replace(meta={"allow_offsite": True})


class Items(Follow):
    """Yields an item of each page."""

    name = "items"

    def parse(self, response, **_):
        self.saw("page", response)
        yield {"url": response.url}
        yield from self.links(response)


class AsksForMore:
    """A pipeline that has the page of each item fetched with another ending, twice."""

    def __init__(self, crawler):
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_item(self, item, spider=None):
        if "/more" not in item["url"]:
            for _ in range(2):
                self._crawler.engine.crawl(scrapy.Request(item["url"].replace("/leaf", "/more")))
        return item


class AsksWhenIdle:
    """An extension that has two pages fetched when the spider is idle: one that was fetched, and another one."""

    def __init__(self, crawler):
        self._crawler, self._asked = crawler, False
        crawler.signals.connect(self._idle, signals.spider_idle)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def _idle(self, spider):
        if not self._asked:
            self._asked = True
            for path in ("/leaf0.html", "/idle.html"):
                self._crawler.engine.crawl(scrapy.Request(spider.urls[0].replace("/index.html", path)))
            raise DontCloseSpider


class Breaks:
    """A downloader middleware, anywhere among the others, that raises for the responses of bad pages."""

    def process_response(self, request, response, spider=None):
        if "bad" in request.url:
            raise IgnoreRequest("bad") if "ignored" in request.url else KeyError("bad")
        return response
