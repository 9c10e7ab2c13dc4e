"""The parts for Scrapy with URIFILTER_CLAIM, by themselves: what becomes of a claim at each end of a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import pytest

scrapy = pytest.importorskip("scrapy", reason="Scrapy is not installed: pip install '.[scrapy]'")

from scrapy import signals  # noqa: E402
from scrapy.exceptions import CloseSpider, DontCloseSpider, IgnoreRequest  # noqa: E402
from scrapy.http import FormRequest, JsonRequest, Response  # noqa: E402
from support.scrapy_parts import A, B, C, crawler_of, opened, passed, redirected  # noqa: E402
from support.scrapy_parts import run as run_parts  # noqa: E402

from urifilter_redis import AsyncClaims, ServerUnavailable, UriFilter  # noqa: E402
from urifilter_redis.scrapy import UriDownloaderMiddleware, UriDupeFilter, UriSpiderMiddleware  # noqa: E402
from urifilter_redis.scrapy.ending import FORGET  # noqa: E402
from urifilter_redis.scrapy.judge import Judge  # noqa: E402
from urifilter_redis.scrapy.link import Answer  # noqa: E402
from urifilter_redis.scrapy.opening import missing_part  # noqa: E402
from urifilter_redis.scrapy.page import Page  # noqa: E402
from urifilter_redis.scrapy.payloads import named, text_of, to_request  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        scrapy.version_info < (2, 15, 0), reason="before 2.15, Scrapy runs coroutines in a reactor only"
    ),
]

CLAIM = {"URIFILTER_CLAIM": True, "URIFILTER_KEY": "url", "URIFILTER_LEASE": 5, "URIFILTER_CLAIM_DELAY": 0}


class Spider(scrapy.Spider):
    """A spider with two callbacks."""

    name = "spider"

    def parse(self, response, **_): ...

    def about(self, response, depth): ...


def crawl(server, **settings):
    return crawler_of(server, Spider, **(CLAIM | settings))


def run(server, test, **settings):
    """Run an async test of a crawler with all parts; it is given the judge's parts by their names."""

    async def main(crawler, dupefilter):
        return await test(Parts(crawler, dupefilter))

    return run_parts(server, main, **({"spider": Spider} | CLAIM | settings))


class Parts:
    """The parts of one crawl, and how a request goes through them."""

    def __init__(self, crawler, dupefilter):
        self.crawler, self.dupefilter, self.judge = crawler, dupefilter, Judge.of(crawler)
        self.downloads, self.pages = UriDownloaderMiddleware(crawler), UriSpiderMiddleware(crawler)
        self.running = crawler.engine._slot.inprogress

    async def found(self, *requests):
        """The requests of a page that reach the scheduler."""
        new = await passed(self.pages, *requests)
        return [each for each in new if each.dont_filter or not self.dupefilter.request_seen(each)]

    async def begun(self, request):
        """The download of a request that was found."""
        (new,) = await self.found(request)
        return self.download(new)

    def download(self, request):
        self.running.add(request)
        assert self.downloads.process_request(request) is None
        return request

    def schedule(self, request):
        """Give the scheduler a request that came by no page; return whether it takes it."""
        self.crawler.signals.send_catch_log(signals.request_scheduled, request=request, spider=self.crawler.spider)
        return request.dont_filter or not self.dupefilter.request_seen(request)

    async def end(self, *requests):
        """Scrapy is done with the pages of requests."""
        self.running.difference_update(requests)
        self.judge.look()
        await self.judge.endings.settle()

    async def fetched(self, request, status=200):
        self.downloads.process_response(request, Response(request.url, status=status, request=request))
        await self.end(request)

    async def idle(self):
        """Whether the spider stays open, after as many looks as it takes."""
        while True:
            told = self.crawler.signals.send_catch_log(
                signals.spider_idle, spider=self.crawler.spider, dont_log=DontCloseSpider
            )
            if not any(isinstance(getattr(each, "value", None), DontCloseSpider) for _, each in told):
                return False
            looked = self.judge.reclaiming._task
            done, _ = await asyncio.wait([looked], timeout=0.5)
            if not done or self.crawler.engine.scheduled:
                return True


def state(server, url) -> str:
    """``new``, ``in hand`` or ``committed``."""
    with UriFilter.open("news", redis=server.url) as news:
        (age,) = news.ages([url])
    return {0: "new", -1: "in hand"}.get(age, "committed")


def left(server) -> dict:
    """What a crawl has left: claims by their items."""
    with UriFilter.open("news", redis=server.url) as news, news.claims(lease=5) as mine:
        return {claim.item: claim for claim in mine.reclaim()}


@contextlib.contextmanager
def another(server):
    """Another crawl's claims."""
    with UriFilter.open("news", redis=server.url) as news, news.claims(lease=5) as mine:
        yield mine


def payload(url, name="spider", **fields):
    return json.dumps({"spider": name, "request": {"url": url, **fields}})


def test_committed_once_the_callback_has_finished(any_server):
    """A page is in hand until Scrapy is done with it; by then the pages that it leads to are in hand."""

    async def test(parts):
        first = await parts.begun(scrapy.Request(A))
        parts.downloads.process_response(first, Response(A, request=first))
        await parts.found(scrapy.Request(B))
        await parts.judge.endings.settle()
        assert (state(any_server, A), state(any_server, B)) == ("in hand", "in hand")
        await parts.end(first)
        assert (state(any_server, A), state(any_server, B)) == ("committed", "in hand")
        assert parts.crawler.stats.get_value("urifilter/committed") == 1

    run(any_server, test)


@pytest.mark.parametrize("how", ["callback", "closes", "exception", "status", "in process_response"])
def test_what_failed_is_offered_again(any_server, how):
    """A failure is counted for a download that failed and a callback that raised, and not for one that closes."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        response = Response(A, request=request, status=503 if how == "status" else 200)
        if how == "exception":
            parts.downloads.process_exception(request, OSError())
        elif how != "in process_response":
            parts.downloads.process_response(request, response)
        if how in {"callback", "closes"}:
            parts.pages.process_spider_exception(response, CloseSpider() if how == "closes" else KeyError())
        await parts.end(request)
        assert parts.judge.link.clients.held == set()
        return left(any_server)[A]

    claim = run(any_server, test)
    assert (claim.failures, claim.lapses) == (0 if how == "closes" else 1, 0)


def test_given_up(any_server):
    """After URIFILTER_CLAIM_FAILURES tries a page is committed, and counted."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        for number in (1, 2, 3):
            assert state(any_server, A) == "in hand"
            parts.downloads.process_exception(request, OSError())
            await parts.end(request)
            if number < 3:
                assert await parts.idle()
                request = parts.download(parts.crawler.engine.scheduled.pop())
        assert state(any_server, A) == "committed"
        stats = parts.crawler.stats.get_stats()
        assert (stats["urifilter/given_up"], stats["urifilter/reclaimed"]) == (1, 2)
        assert not await parts.idle()

    run(any_server, test)


def test_given_up_by_the_failures_of_others(any_server):
    """A page that others have tried often enough is given up as it is reclaimed."""

    async def test(parts):
        with another(any_server) as mine:
            mine.claim(A, payload=payload(A))
            mine.release([A], failed=True)
        assert not await parts.idle()
        assert state(any_server, A) == "committed"
        assert parts.crawler.stats.get_value("urifilter/given_up") == 1

    run(any_server, test, URIFILTER_CLAIM_FAILURES=1)


def test_growing_delays(any_server):
    """The delay doubles with each failure, to five minutes at most."""
    claiming = Judge.of(crawl(any_server, URIFILTER_CLAIM_DELAY=30, URIFILTER_CLAIM_FAILURES=9)).options.claiming
    assert [claiming.delay_after(failures) for failures in (1, 2, 3, 8)] == [30, 60, 120, 300]
    assert claiming.longest_delay == 300


def test_an_idle_spider_takes_over(any_server):
    """It gets the requests of a crawl that stopped, with its own methods as callbacks; others wait for no answer."""

    async def main():
        first, second = crawl(any_server), crawl(any_server)
        async with opened(first) as dupefilter:
            parts = Parts(first, dupefilter)
            about = scrapy.Request(
                A, callback=first.spider.about, cb_kwargs={"depth": 2}, meta={"n": [1]}, body=b"\xff"
            )
            assert len(await parts.found(about, scrapy.Request(B))) == 2
        async with opened(second) as dupefilter:
            parts = Parts(second, dupefilter)
            assert await parts.idle()
            by_url = {each.url: each for each in second.engine.scheduled}
            assert by_url.keys() == {A, B}
            assert by_url[A].callback == second.spider.about
            assert (by_url[A].cb_kwargs, by_url[A].meta["n"], by_url[A].body) == ({"depth": 2}, [1], b"\xff")
            assert dupefilter.request_seen(scrapy.Request(B))
            for each in second.engine.scheduled:
                await parts.fetched(parts.download(each))
            second.engine.scheduled.clear()
            assert not await parts.idle()
        item = parts.judge.item(about)  # which has a body
        assert (state(any_server, item), state(any_server, B)) == ("committed", "committed")

    asyncio.run(main())


def test_an_idle_spider_waits_for_others(any_server):
    """It stays open while another crawl has a page in hand, and closes once that is committed."""

    async def test(parts):
        with another(any_server) as mine:
            mine.claim(A)
            assert await parts.idle()
            mine.commit([A])
            while await parts.idle():
                await asyncio.sleep(0.1)

    run(any_server, test)


def test_an_idle_spider_waits_for_one_that_is_busy(any_server):
    """It stays open, however late it looks again: the other calls all the time, and would be dead a lease later."""

    async def be_busy(mine):
        while True:
            mine.claim(A)
            await asyncio.sleep(0.02)

    async def test(parts):
        with another(any_server) as mine:
            busy = asyncio.ensure_future(be_busy(mine))
            for _ in range(16):  # until the pause between two looks would be longer than a lease
                assert await parts.idle()
            busy.cancel()

    run(any_server, test)


@pytest.mark.parametrize(("delay", "stays"), [(3, True), (600, False)])
def test_what_others_have_released(any_server, delay, stays):
    """An idle spider waits for pages that others will have tried again soon, and not for those that they parked."""

    async def test(parts):
        with another(any_server) as mine:
            mine.claim(A, payload=payload(A))
            mine.release([A], delay=delay)
        assert await parts.idle() is stays

    run(any_server, test)


@pytest.mark.parametrize(
    ("text", "stat"),
    [
        (payload(A, "another spider"), None),
        ("no JSON", "urifilter/unreadable"),
        (payload(A, callback="missing"), "urifilter/unreadable"),
        (payload(A, _class="os.path.join"), "urifilter/unreadable"),
        (json.dumps([1]), "urifilter/unreadable"),
    ],
)
def test_not_for_this_spider(any_server, text, stat):
    """A page that this spider cannot fetch is left to others for ten minutes; the spider does not wait for it."""

    async def test(parts):
        with another(any_server) as mine:
            mine.claim(A, payload=text)
        assert not await parts.idle()
        assert state(any_server, A) == "in hand"
        assert parts.judge.link.clients.held == set()
        assert stat is None or parts.crawler.stats.get_value(stat) == 1
        assert left(any_server) == {}

    run(any_server, test)


def test_an_item_of_no_spider(any_server):
    """An item of another tool, which is no text, is left alone."""

    async def test(parts):
        with another(any_server) as mine:
            mine.claim({"a": [1]})
        assert not await parts.idle()
        assert parts.judge.link.clients.held == set()
        assert state(any_server, {"a": [1]}) == "in hand"

    run(any_server, test)


def test_an_item_of_no_spider_that_cannot_be_given_back(any_server, monkeypatch):
    """What came with it is fetched nevertheless, and the next look gives it back."""
    release, failed = AsyncClaims.release, []

    async def away(mine, items, **more):
        if not failed:
            failed.append(items)
            raise ServerUnavailable("away")
        return await release(mine, items, **more)

    monkeypatch.setattr(AsyncClaims, "release", away)

    async def test(parts):
        with another(any_server) as mine:
            mine.claim({"a": [1]})
            mine.claim(A, payload=payload(A))
        assert await parts.idle()
        (request,) = parts.crawler.engine.scheduled
        parts.crawler.engine.scheduled.clear()
        await parts.fetched(parts.download(request))
        while await parts.idle():
            await asyncio.sleep(0.1)
        assert parts.judge.link.clients.held == set()
        assert len(failed) == 1

    run(any_server, test)
    assert state(any_server, A) == "committed"
    assert left(any_server) == {}


def test_parked(any_server, caplog):
    """A page that was in the hands of crawls that died is set aside, told and counted, and never committed."""

    async def test(parts):
        with UriFilter.open("news", redis=any_server.url) as news:
            for number in range(2):
                dead = news.claims(lease=5, holder=f"{number + 1:02x}" * 8, beats=False)
                assert dead.claim(A, payload=payload(A)) if number == 0 else dead.reclaim()
                any_server.client().zadd("urifilter:{news:0}:holders", {bytes.fromhex(dead.holder): 1})
        assert not await parts.idle()
        assert state(any_server, A) == "in hand"
        assert parts.crawler.stats.get_value("urifilter/parked") == 1
        assert f"{A} killed 2 crawls" in caplog.text

    run(any_server, test, URIFILTER_CLAIM_LAPSES=2)


@pytest.mark.parametrize("why", ["callback", "meta", "tuple", "size"])
def test_claimed_with_its_address_alone(any_server, why, caplog):
    """A request that cannot be written as JSON is claimed, and another crawl gets its address; that is said once."""
    more = {
        "callback": {"callback": print},
        "meta": {"meta": {"object": object()}},
        "tuple": {"meta": {"tuple": (1, 2)}},
        "size": {"meta": {"text": "x" * 70_000}},
    }[why]

    async def test(parts):
        assert len(await parts.found(scrapy.Request(A, **more), scrapy.Request(B, **more))) == 2
        assert parts.crawler.stats.get_value("urifilter/url_only") == 2

    run(any_server, test)
    assert sum("with its address alone" in each.getMessage() for each in caplog.records) == 1
    assert {item: json.loads(claim.payload) for item, claim in left(any_server).items()} == {
        url: {"spider": "spider", "request": {"url": url}} for url in (A, B)
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: scrapy.Request(A, method="PUT", headers={"X-Name": ["a", "b\xe9"]}, cookies={"a": "b"}, priority=-3),
        lambda: FormRequest(A, formdata={"a": "b"}, flags=["c"], encoding="latin-1"),
        lambda: JsonRequest(A, data={"a": [1, None]}, meta={"depth": 3, "urifilter": {"of": "x"}}),
    ],
)
def test_payloads(any_server, make):
    """A request comes back as it was written, but for the mark of the crawl that wrote it."""
    spider, request = Spider(), make()
    text = text_of(request, spider)
    back = to_request(text, spider)
    expected, found = request.to_dict(spider=spider), back.to_dict(spider=spider)
    expected["meta"] = {key: value for key, value in expected["meta"].items() if key != "urifilter"}
    assert found == expected
    assert type(back) is type(request)
    assert named(text) == ("spider", A)


@pytest.mark.parametrize("path", ["this.Request", "json.loads", "scrapy.Spider", "antigravity.Request", "x", 7])
def test_a_class_that_redis_names(path):
    """Nothing is imported, and no other class is called, because a payload says so."""
    text = json.dumps({"spider": "spider", "request": {"url": A, "_class": path}})
    before = set(sys.modules)
    with pytest.raises(ValueError, match="is no class of requests that is imported here"):
        to_request(text, Spider())
    assert set(sys.modules) == before


def test_a_redirect(any_server):
    """The addresses of a redirect share an outcome."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        moved = redirected(request, B)
        assert parts.schedule(moved)
        await parts.end(request)
        assert (state(any_server, A), state(any_server, B)) == ("in hand", "in hand")
        await parts.fetched(parts.download(moved))
        assert (state(any_server, A), state(any_server, B)) == ("committed", "committed")

    run(any_server, test)


def test_a_redirect_that_fails(any_server):
    """A failure is counted for each of the addresses, whichever client has claimed it."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        moved = redirected(request, B)
        assert parts.schedule(moved)
        await parts.end(request)
        parts.downloads.process_exception(parts.download(moved), OSError())
        await parts.end(moved)
        assert parts.judge.link.clients.held == set()

    run(any_server, test)
    assert {item: claim.failures for item, claim in left(any_server).items()} == {A: 1, B: 1}


@pytest.mark.parametrize("where", ["seen", "offsite", "seen later"])
def test_a_redirect_to_a_page_of_others(any_server, where):
    """The address that led there was fetched, and is committed."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        moved = redirected(request, B)
        if where == "offsite":
            offsite = scrapy.downloadermiddlewares.offsite.OffsiteMiddleware.from_crawler(parts.crawler)
            parts.crawler.engine.downloader.middleware.middlewares = (offsite,)
            parts.crawler.spider.allowed_domains = ["example.org"]
            offsite.spider_opened(parts.crawler.spider)
            parts.crawler.signals.send_catch_log(signals.request_scheduled, request=moved, spider=parts.crawler.spider)
        else:
            with UriFilter.open("news", redis=any_server.url) as news:
                news.insert(B)
            if where == "seen later":
                parts.judge.endings.add(FORGET, [C])  # so that its answer cannot be trusted
            assert parts.schedule(moved) is (where == "seen later")
        await parts.end(request)
        if where == "seen later":
            parts.running.add(moved)
            with pytest.raises(IgnoreRequest):
                await parts.downloads.process_request(moved)
            await parts.end(moved)
        assert state(any_server, A) == "committed"
        assert parts.judge.link.clients.held == set()

    run(any_server, test)


def test_a_redirect_to_itself(any_server):
    """It is dropped as Scrapy's own filter does, and the address is committed."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        assert not parts.schedule(redirected(request, A))
        await parts.end(request)
        assert state(any_server, A) == "committed"

    run(any_server, test)


@pytest.mark.parametrize("of", ["middleware", "callback"])
def test_a_retry_keeps_the_claim(any_server, of):
    """The page is in hand until a retry is done, be it of Scrapy's middleware or of the page's own callback."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        retry = request.replace(dont_filter=True)
        if of == "callback":
            parts.downloads.process_response(request, Response(A, request=request))
            (retry,) = await parts.found(retry)
        assert parts.schedule(retry)
        await parts.end(request)
        assert state(any_server, A) == "in hand"
        await parts.fetched(parts.download(retry))
        assert state(any_server, A) == "committed"

    run(any_server, test)


def test_a_start_without_end(any_server):
    """Requests that have reached the scheduler leave nothing behind, however long ``start()`` goes on."""

    async def test(parts):
        start = Page(parts.crawler, None)
        request = scrapy.Request(A)
        assert await parts.judge.judge([request], start) == [False]
        assert len(start.tickets) == 1
        assert parts.schedule(request)
        parts.judge.drop(request)
        assert start.tickets == set()

    run(any_server, test)


@pytest.mark.parametrize("how", ["page", "status", "exception"])
def test_a_download_within_a_callback(any_server, how):
    """A callback that downloads its own page again by the engine has the page in hand until it has finished."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        parts.downloads.process_response(request, Response(A, request=request))
        again = parts.download(request.replace(dont_filter=True))
        if how == "exception":
            parts.downloads.process_exception(again, OSError())
            await parts.end(again)
        else:
            await parts.fetched(again, status=503 if how == "status" else 200)
        assert parts.judge.link.clients.held == {A}
        await parts.end(request)
        assert state(any_server, A) == "committed"

    run(any_server, test)


def test_a_copy_of_meta_keeps_nothing(any_server):
    """A page whose meta goes to another request is committed as it ends; that request is claimed by itself."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        parts.downloads.process_response(request, Response(A, request=request))
        (other,) = await parts.found(scrapy.Request(B, meta=request.meta), request.replace(dont_filter=False))
        for unfiltered in (scrapy.Request(C, meta=request.meta, dont_filter=True),):
            assert parts.schedule(unfiltered)
        await parts.end(request)
        assert [state(any_server, each) for each in (A, B, C)] == ["committed", "in hand", "new"]
        await parts.fetched(parts.download(other))
        assert state(any_server, B) == "committed"

    run(any_server, test)


def test_a_duplicate_of_a_page_under_way(any_server):
    """A request that comes by no page is dropped while its page is in hand, and that page is committed as it ends."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        assert not parts.schedule(request.copy())
        parts.downloads.process_response(request, Response(A, request=request))
        assert not parts.schedule(request.copy())
        await parts.end(request)
        assert state(any_server, A) == "committed"

    run(any_server, test)


def test_unfiltered(any_server):
    """A request with dont_filter is nobody's claim."""

    async def test(parts):
        (request,) = await parts.found(scrapy.Request(A, dont_filter=True))
        await parts.fetched(parts.download(request))
        assert state(any_server, A) == "new"

    run(any_server, test)


@pytest.mark.parametrize("how", ["robots.txt", "before the scheduler"])
def test_dropped_by_the_project(any_server, how):
    """The address is new again, as without claims."""

    async def test(parts):
        if how == "robots.txt":
            request = await parts.begun(scrapy.Request(A))
            parts.downloads.process_exception(request, IgnoreRequest())
        else:
            (request,) = await passed(parts.pages, scrapy.Request(A))
            parts.crawler.engine.scraper.slot.active.clear()
        await parts.end(request)
        assert state(any_server, A) == "new"
        assert left(any_server) == {}
        assert parts.judge.link.clients.held == set()

    run(any_server, test)


def test_a_request_that_vanished(any_server):
    """If a handler drops a retry, an idle spider does not keep the page, nor wait for it."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        vanished = request.replace(dont_filter=True)
        assert parts.schedule(vanished)
        await parts.end(request)
        assert not await parts.idle()
        assert (state(any_server, A), parts.judge.link.clients.held) == ("in hand", set())

    run(any_server, test)


def test_a_spider_that_stops(any_server):
    """All that it has in hand, by either client, is offered at once, without a failure or lapse."""

    async def test(parts):
        await parts.begun(scrapy.Request(A))
        assert parts.schedule(scrapy.Request(B))
        (waiting,) = await parts.found(scrapy.Request(C))
        parts.crawler.engine.keep_in_memory(waiting)

    run(any_server, test)
    found = left(any_server)
    assert found.keys() == {A, B, C}
    assert {(claim.failures, claim.lapses) for claim in found.values()} == {(0, 0)}


def test_a_look_as_the_spider_stops(any_server):
    """Pages that an idle spider takes over as it is stopped are offered at once."""

    async def test(parts):
        with another(any_server) as mine:
            mine.claim(A, payload=payload(A))
        parts.crawler.signals.send_catch_log(signals.spider_idle, spider=parts.crawler.spider, dont_log=DontCloseSpider)
        assert parts.judge.reclaiming._task is not None
        await asyncio.sleep(0)

    run(any_server, test)
    assert left(any_server).keys() == {A}


@pytest.mark.parametrize("on_error", ["pause", "pass"])
def test_a_page_ends_while_redis_is_away(make_server, on_error):
    """A spider that does not wait for Redis tells later that a page was handled: it is not fetched twice."""
    server = make_server(appendonly="yes", appendfsync="always")

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        server.kill()
        if on_error == "pause":
            parts.crawler.engine.begin_closing()
        parts.judge.link.ask_now(B, None)  # so that it knows that Redis is away
        assert parts.judge.link.away
        await parts.fetched(request)
        assert parts.judge.endings.items == {A}
        assert parts.crawler.stats.get_value("urifilter/committed") is None
        server.start()

    run(server, test, URIFILTER_ON_ERROR=on_error, URIFILTER_TIMEOUT=0.5)
    assert state(server, A) == "committed"


@pytest.mark.parametrize("on_error", ["pause", "pass"])
def test_found_while_redis_is_away(make_server, on_error):
    """Links that nobody was asked about are claimed as the spider closes: the page that has them is committed then."""
    server = make_server(appendonly="yes", appendfsync="always")

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        server.kill()
        if on_error == "pause":
            parts.crawler.engine.begin_closing()
        parts.judge.link.ask_now(B, None)
        (link,) = await parts.found(scrapy.Request(C))
        parts.crawler.engine.keep_in_memory(link)
        await parts.fetched(request)
        server.start()

    run(server, test, URIFILTER_ON_ERROR=on_error, URIFILTER_TIMEOUT=0.5)
    assert (state(server, A), left(server).keys()) == ("committed", {C})


def test_links_that_cannot_be_told(any_server):
    """If the filter cannot be told of a page's links as the spider closes, the page is not committed."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        parts.judge.link.ask = lambda items, _: asyncio.sleep(0, [Answer.ASK for _ in items])
        (link,) = await parts.found(scrapy.Request(C))
        parts.crawler.engine.keep_in_memory(link)
        parts.downloads.process_response(request, Response(A, request=request))
        parts.running.clear()

    run(any_server, test)
    assert left(any_server).keys() == {A}


def test_a_redirect_that_waits_as_the_spider_closes(any_server):
    """The address that led to a request about which nobody was asked is given back."""

    async def test(parts):
        request = await parts.begun(scrapy.Request(A))
        parts.judge.endings.add(FORGET, [C])  # so that its answer cannot be trusted
        moved = redirected(request, B)
        assert parts.schedule(moved)
        parts.crawler.engine.keep_in_memory(moved)
        parts.running.clear()

    run(any_server, test, URIFILTER_CLAIM=False)
    assert state(any_server, A) == "new"


@pytest.mark.parametrize("missing", ["dupefilter", "pages", "downloads"])
def test_all_parts_are_needed(any_server, missing):
    """With claims a part that is missing is named before the crawl begins; without, the dupefilter works alone."""
    parts = {"dupefilter": True, "pages": True, "downloads": True}
    options = Judge.of(crawl(any_server)).options
    assert missing_part(options, **parts) is None
    said = "DUPEFILTER_CLASS" if missing == "dupefilter" else "UriFilterAddon"
    assert said in missing_part(options, **parts | {missing: False})
    without = Judge.of(crawl(any_server, URIFILTER_CLAIM=False)).options
    assert missing_part(without, dupefilter=True, pages=False, downloads=False) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"JOBDIR": "jobs"}, "Scrapy's own scheduler without JOBDIR"),
        ({"SCHEDULER": "scrapy.core.scheduler.BaseScheduler"}, "Scrapy's own scheduler without JOBDIR"),
        ({"URIFILTER_CLEAR": True}, "URIFILTER_CLEAR would drop"),
        ({"URIFILTER_LEASE": 1}, "a lease is 5 to 3600 seconds"),
        ({"URIFILTER_CLAIM_FAILURES": 0}, "URIFILTER_CLAIM_FAILURES is a whole number above 0"),
        ({"URIFILTER_CLAIM_LAPSES": "some"}, "URIFILTER_CLAIM_LAPSES is a whole number"),
        ({"URIFILTER_CLAIM_DELAY": 601}, "a delay is 0 to 600 seconds"),
    ],
)
def test_impossible_settings(any_server, settings, said):
    """They are refused before the crawl begins."""
    with pytest.raises(ValueError, match=said):
        UriDupeFilter.from_crawler(crawl(any_server, **settings))
