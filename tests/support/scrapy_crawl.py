"""A crawl by Scrapy in a process of its own: ``python scrapy_crawl.py JSON`` prints its stats as JSON.

The JSON has ``url``, the addresses to start from; ``settings``, of Scrapy; ``domains`` and ``spider``, one of those
below or in ``scrapy_spiders``, for the spider; ``together``: a folder, and the number of crawls that have to be there
before each begins; and ``count``, of spiders in this process, each with its share of the addresses.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from urllib.parse import urlsplit

ADDON = {"urifilter_redis.scrapy.UriFilterAddon": 100}

#: Settings of claims, under which a test does not wait for long.
CLAIMS = {"URIFILTER_CLAIM": True, "URIFILTER_LEASE": 5, "URIFILTER_CLAIM_DELAY": 0, "URIFILTER_CLAIM_FAILURES": 1}

#: The folder of the example, which is a project of Scrapy.
PROJECT = pathlib.Path(__file__).parents[2] / "examples" / "crawl_scrapy"


def ours(server, *, claims=False, **more) -> dict:
    """The settings of a crawl with the add-on, and perhaps with claims."""
    named = {"ADDONS": ADDON, "URIFILTER_REDIS_URL": server.url, "URIFILTER_NAME": "news"}
    return named | (CLAIMS if claims else {}) | more


def run_in_project(server, *words, **env: str) -> str:
    """Run Python with some words in the example's project; return what it printed."""
    given = {
        "SCRAPY_SETTINGS_MODULE": "settings",
        "URIFILTER_REDIS_URL": server.url,
        "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ["PYTHONPATH"]]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=PROJECT, env=os.environ | given | env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check(site, *starts: str, stopped: bool = False):
    """Each page was fetched once.

    Those that fail were at least once, likewise the addresses that several crawls begin with, and redirects to an
    unfetched page if a crawl was stopped.
    """
    fetched = Counter(site.fetched())
    assert fetched.keys() == site.pages.keys()
    begun = {urlsplit(each).path for each in starts}
    twice = [site.pages[path] for path, times in fetched.items() if times > 1 and path not in begun]
    assert [each for each in twice if not each.has_failed and not (stopped and each.location)] == []


def in_flight(server) -> int:
    return server.client().hlen("urifilter:{news:0}:leases")


def check_committed(server, site) -> None:
    """Every page of the site is committed, and nothing is in flight."""
    from scrapy import Request
    from scrapy.utils.request import fingerprint

    from urifilter_redis import UriFilter

    assert in_flight(server) == 0
    with UriFilter.open("news", redis=server.url) as news:
        seen = news.contains_many([fingerprint(Request(site.at("127.0.0.1", path))).hex() for path in site.pages])
    assert [path for path, found in zip(site.pages, seen, strict=True) if not found] == []


class Crawl:
    """A crawl that runs; ``stats`` waits for its end."""

    def __init__(self, *urls: str, spider: str = "Follow", domains=(), together=None, count=1, **settings) -> None:
        given = {"url": urls, "spider": spider, "domains": domains, "together": together, "settings": settings}
        given["count"] = count
        descriptor, name = tempfile.mkstemp(prefix="uf-crawl-")
        self._log = pathlib.Path(name)
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(given)], stdout=subprocess.PIPE, stderr=descriptor, text=True
        )
        os.close(descriptor)

    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text()

    def stats(self) -> dict:
        """The stats at the end; ``log`` has the log."""
        try:
            out, _ = self._process.communicate(timeout=1000)
        except subprocess.TimeoutExpired:
            log = self.log()
            self.kill()
            raise AssertionError(f"the crawl does not end: {log[-5000:]}") from None
        log = self.log()
        self._log.unlink()
        assert self._process.returncode == 0, log[-5000:]
        return json.loads(out) | {"log": log}

    def stop(self) -> None:
        """Ask the spider to close, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def suspend(self) -> None:
        from support.servers import suspend

        suspend(self._process.pid)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.unlink()


def main() -> None:  # noqa: C901 - classes that need Scrapy, which may be missing where tests are collected
    import scrapy
    from scrapy.crawler import CrawlerProcess
    from scrapy.exceptions import IgnoreRequest
    from scrapy.utils.defer import maybe_deferred_to_future

    from tests.support import scrapy_spiders

    given = json.loads(sys.argv[1])

    async def together(folder, count):
        """Wait until as many crawls have begun."""
        await asyncio.to_thread(pathlib.Path(folder, str(os.getpid())).touch)
        while len(os.listdir(folder)) < count:
            await asyncio.sleep(0.01)

    class Follow(scrapy.Spider):
        """Follows all links."""

        name, allowed_domains = "follow", given["domains"]

        async def start(self):
            if given["together"] is not None:
                await together(*given["together"])
            for url in given["url"]:
                yield scrapy.Request(url)

        def parse(self, response, **_):
            if isinstance(response, scrapy.http.HtmlResponse):
                yield from response.follow_all(css="a[href^='.'], a[href$='html'], a[href*='part'], a[href*='html#']")
                yield from response.follow_all(css="a[href^='http']")

    class Finds(Follow):
        """Finds its addresses on a page that it starts with, and follows all links; of the same name, and so queue."""

        async def start(self):
            yield scrapy.Request("data:,start", self.found, dont_filter=True)

        def found(self, response):
            yield from map(scrapy.Request, given["url"])

    class Unfiltered(Follow):
        """Starts as ``start_urls`` does."""

        name, start_urls = "unfiltered", given["url"]
        start = scrapy.Spider.start

    class Sitemap(scrapy.spiders.SitemapSpider):
        """Fetches the pages of a sitemap; those that link to other sitemaps are fetched each time."""

        name, sitemap_urls = "sitemap", given["url"]

        def _parse_sitemap(self, response):
            for request in super()._parse_sitemap(response):
                if request.callback == self._parse_sitemap:
                    request.meta["urifilter"] = "again"
                yield request

        def parse(self, response, **_): ...

    class CopyMeta(Follow):
        """Gives its pages' meta to all their links."""

        name = "copy_meta"

        def parse(self, response, **_):
            for each in super().parse(response):
                yield each.replace(meta=response.meta)

    class Endless(Follow):
        """Starts, and waits for ever; it is closed from outside."""

        name = "endless"

        async def start(self):
            for url in given["url"]:
                yield scrapy.Request(url)
            await asyncio.sleep(1000)

    class StopsItself(Follow):
        """Stops the engine in its start(), or closes the spider."""

        name = "stops_itself"

        async def start(self):
            engine = self.crawler.engine
            yield scrapy.Request(given["url"][0])
            if hasattr(engine, "stop_async"):
                await (engine.stop_async() if given["url"][1:] else engine.close_spider_async(reason="enough"))
            else:
                await maybe_deferred_to_future(
                    engine.stop() if given["url"][1:] else engine.close_spider(self, "enough")
                )

    class Drop:
        """A spider middleware nearest to the engine that drops some requests."""

        async def process_spider_output(self, response, result, spider=None):
            async for each in result:
                if not (isinstance(each, scrapy.Request) and "part3/" in each.url):
                    yield each

    class Refuse:
        """A handler of the signal that comes before the scheduler; it drops some requests."""

        def __init__(self, crawler):
            crawler.signals.connect(self.refuse, scrapy.signals.request_scheduled)

        @classmethod
        def from_crawler(cls, crawler):
            return cls(crawler)

        def refuse(self, request):
            if "part3/" in request.url:
                raise IgnoreRequest("part3")

    settings = {
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "INFO",
        "RETRY_TIMES": 1,
        "CONCURRENT_REQUESTS": 16,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "DOWNLOAD_DELAY": 0,
        "CLOSESPIDER_TIMEOUT": 900,  # the limit of the tests that crawl long is 1200
    }
    ours = {"Drop": Drop, "Refuse": Refuse}
    for name in ("SPIDER_MIDDLEWARES", "EXTENSIONS"):
        named = given["settings"].get(name, {})
        given["settings"][name] = {ours.get(each, each): order for each, order in named.items()}
    process = CrawlerProcess(settings | given["settings"])
    spider = locals().get(given["spider"]) or getattr(scrapy_spiders, given["spider"])
    for n in range(given["count"]):
        crawler = process.create_crawler(spider)
        process.crawl(crawler, urls=given["url"][n :: given["count"]], allowed_domains=given["domains"])
    process.start()
    os.write(1, json.dumps(crawler.stats.get_stats(), default=str).encode())


if __name__ == "__main__":
    main()
