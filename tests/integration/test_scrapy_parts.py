"""The parts for Scrapy, each by itself: dupefilter, spider middleware, downloader middleware and settings.

The first tests are Scrapy's own of a dupefilter and a scheduler, and those of scrapy-redis, rewritten for a filter.
"""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

scrapy = pytest.importorskip("scrapy", reason="Scrapy is not installed: pip install '.[scrapy]'")

from scrapy import signals  # noqa: E402
from scrapy.core.scheduler import Scheduler  # noqa: E402
from scrapy.exceptions import IgnoreRequest, NotSupported  # noqa: E402
from scrapy.http import Response  # noqa: E402
from scrapy.utils.defer import maybe_deferred_to_future  # noqa: E402
from scrapy.utils.test import get_crawler  # noqa: E402
from support.proxy import Fault, Proxy, never  # noqa: E402
from support.scrapy_parts import (  # noqa: E402
    A,
    B,
    C,
    crawler_of,
    opened,
    pages_are_done,
    passed,
    redirected,
    run,
    seen,
)
from twisted.python.failure import Failure  # noqa: E402

from urifilter_redis import ConfigMismatch, Timeouts, UriFilter  # noqa: E402
from urifilter_redis.scrapy import (  # noqa: E402
    UriDownloaderMiddleware,
    UriDupeFilter,
    UriSpiderMiddleware,
    engine,
)
from urifilter_redis.scrapy.gathering import MOST, Gathering  # noqa: E402
from urifilter_redis.scrapy.judge import MOST_HELD, Judge  # noqa: E402
from urifilter_redis.scrapy.link import Answer  # noqa: E402
from urifilter_redis.scrapy.opening import misplaced  # noqa: E402
from urifilter_redis.scrapy.options import Options  # noqa: E402
from urifilter_redis.scrapy.outcomes import Outcome  # noqa: E402

pytestmark = pytest.mark.skipif(
    scrapy.version_info < (2, 15, 0), reason="before 2.15, Scrapy runs coroutines in a reactor only"
)


def test_a_request_is_seen_once_it_was_asked_about(any_server):
    """The dupefilter answers by method, canonical address and body, as Scrapy's does."""

    async def test(crawler, dupefilter):
        requests = [scrapy.Request(A), scrapy.Request(B), scrapy.Request(f"{A}#part"), scrapy.Request(A, method="POST")]
        assert [dupefilter.request_seen(each) for each in (*requests, *requests)] == [
            *(False, False, True, False),
            *(True, True, True, True),
        ]

    run(any_server, test)


def test_it_is_shared(any_server):
    """Two crawls that are open at once have one filter, and it is there after both."""

    async def test(crawler, dupefilter):
        async with opened(crawler_of(any_server)) as other:
            assert not dupefilter.request_seen(scrapy.Request(A))
            assert other.request_seen(scrapy.Request(A))
            assert not other.request_seen(scrapy.Request(B))

    run(any_server, test)
    run(any_server, lambda _, dupefilter: asyncio.sleep(0, dupefilter.request_seen(scrapy.Request(B)) or 1 / 0))


def test_scrapys_scheduler(any_server):
    """The scheduler drops duplicates, counts and signals them, and takes what has dont_filter."""

    async def main():
        addons = {"urifilter_redis.scrapy.UriFilterAddon": 100}
        queue = "scrapy.pqueues.ScrapyPriorityQueue"  # the default asks the downloader
        crawler = crawler_of(any_server, ADDONS=addons, SCHEDULER_PRIORITY_QUEUE=queue)
        scheduler = Scheduler.from_crawler(crawler)
        assert isinstance(scheduler.df, UriDupeFilter)
        await maybe_deferred_to_future(scheduler.open(crawler.spider))
        requests = [scrapy.Request(A), scrapy.Request(A), scrapy.Request(A, dont_filter=True), scrapy.Request(B)]
        assert [scheduler.enqueue_request(each) for each in requests] == [True, False, True, True]
        assert crawler.stats.get_value("dupefilter/filtered") == 1
        assert {scheduler.next_request().url for _ in range(3)} == {A, B}
        await maybe_deferred_to_future(scheduler.close("finished"))

    asyncio.run(main())


@pytest.mark.parametrize("debug", [False, True])
def test_log(any_server, caplog, debug):
    """The first duplicate is logged, and all with DUPEFILTER_DEBUG."""

    async def test(crawler, dupefilter):
        with caplog.at_level(logging.DEBUG, "urifilter_redis.scrapy"):
            for _ in range(3):
                dupefilter.log(scrapy.Request(A, headers={"Referer": B}), crawler.spider)
        return crawler.stats.get_value("dupefilter/filtered")

    assert run(any_server, test, DUPEFILTER_DEBUG=debug) == 3
    told = [each.getMessage() for each in caplog.records if "Filtered duplicate request" in each.getMessage()]
    assert len(told) == (3 if debug else 1)
    assert f"<GET {A}> (referer: {B})" in told[0]


def test_for_scrapy_redis(any_server, caplog):
    """``from_spider`` makes the crawl's dupefilter; ``clear`` warns and keeps the filter without URIFILTER_CLEAR."""

    async def test(crawler, dupefilter):
        same = UriDupeFilter.from_spider(crawler.spider)
        assert not dupefilter.request_seen(scrapy.Request(A))
        same.clear()
        assert same.request_seen(scrapy.Request(A))

    run(any_server, test)
    assert "set URIFILTER_CLEAR to empty it" in caplog.text


def test_clear(any_server):
    """With URIFILTER_CLEAR, ``clear`` empties the filter, and the crawl goes on."""

    async def test(crawler, dupefilter):
        middleware = UriSpiderMiddleware.from_crawler(crawler)
        assert await passed(middleware, scrapy.Request(A))
        dupefilter.clear()
        assert [dupefilter.request_seen(scrapy.Request(A)) for _ in range(2)] == [False, True]
        assert len(await passed(middleware, scrapy.Request(A), scrapy.Request(B))) == 1

    run(any_server, test, URIFILTER_CLEAR=True)


def test_a_page_is_one_question(any_server):
    """The middleware drops what was seen; the dupefilter lets the rest pass without asking, once."""

    async def test(crawler, dupefilter):
        middleware, dropped = UriSpiderMiddleware.from_crawler(crawler), []
        crawler.signals.connect(lambda request: dropped.append(request.url), signals.request_dropped, weak=False)
        assert not dupefilter.request_seen(scrapy.Request(B))
        item, again = {"an": "item"}, scrapy.Request(C)
        output = [scrapy.Request(A), item, scrapy.Request(A), scrapy.Request(B), scrapy.Request(B, dont_filter=True)]
        left = await passed(middleware, *output, again, again)
        assert [getattr(each, "url", each) for each in left] == [A, item, B, C]
        assert dropped == [A, B, C]
        assert [dupefilter.request_seen(left[0]) for _ in range(3)] == [False, True, True]
        assert not dupefilter.request_seen(left[3])
        stats = crawler.stats.get_stats()
        assert (stats["urifilter/calls"], stats["urifilter/asked"], stats["dupefilter/filtered"]) == (4, 8, 3)

    run(any_server, test)


def test_a_copy_of_meta_is_no_answer(any_server):
    """A mark is good for its own fingerprint, and once: retries, redirects and ``meta=response.meta`` copy it."""

    async def test(crawler, dupefilter):
        middleware = UriSpiderMiddleware.from_crawler(crawler)
        (new,) = await passed(middleware, scrapy.Request(A))
        other, same = new.replace(url=B), new.copy()
        assert not dupefilter.request_seen(other)
        assert dupefilter.request_seen(other.copy())
        assert [dupefilter.request_seen(each) for each in (same, new, new.copy())] == [False, True, True]
        (copied,) = await passed(middleware, scrapy.Request(C, meta=same.meta), scrapy.Request(A, meta=same.meta))
        assert copied.url == C
        assert not dupefilter.request_seen(copied)

    run(any_server, test)


def test_the_url_of_a_request(any_server):
    """With "url" the item is the canonical address; the method and the body tell other requests from it."""
    key = Options.of(crawler_of(any_server, URIFILTER_KEY="url")).key
    assert key(scrapy.Request(f"{A}?b=1&a=2#part")) == key(scrapy.Request(f"{A}?a=2&b=1")) == f"{A}?a=2&b=1"
    others = [scrapy.Request(A, method="POST", body=body) for body in ("", "one", "two")]
    others += [scrapy.Request(A, method="HEAD"), scrapy.Request(A, body="one"), scrapy.Request(A)]
    assert len({key(each) for each in others}) == 6
    assert key(others[0]) == f"POST {A}"


@pytest.mark.parametrize("exists", [False, True])
def test_normalize_has_no_effect_on_fingerprints(any_server, exists):
    """It is refused with the default key, of the settings and of a filter that is there; with "url" it works."""

    async def test(crawler, dupefilter):
        same = [scrapy.Request(f"{scheme}://example.com/a") for scheme in ("https", "http")]
        return [dupefilter.request_seen(each) for each in same]

    made = {"URIFILTER_NORMALIZE": "loose"}
    if exists:
        UriFilter.create("news", redis=any_server.url, capacity=10_000, normalize="loose").close()
        made = {"URIFILTER_CAPACITY": None}
    with pytest.raises(ConfigMismatch if exists else ValueError, match="no effect on fingerprints"):
        run(any_server, test, **made)
    assert run(any_server, test, URIFILTER_KEY="url", **made) == [False, True]


@pytest.mark.parametrize("key", ["fingerprint", "url", "test_scrapy_parts.without_query"])
def test_key(any_server, key, monkeypatch):
    """The item is the fingerprint's hex text, the address, or what a function makes of the request."""
    if "." in key:
        monkeypatch.setattr("urifilter_redis.scrapy.options.load_object", lambda _: without_query)
    request = scrapy.Request(f"{A}?b=1")

    async def test(crawler, dupefilter):
        assert len(await passed(UriSpiderMiddleware.from_crawler(crawler), request)) == 1
        dupefilter.request_seen(request)
        return crawler.request_fingerprinter.fingerprint(request).hex()

    fingerprint = run(any_server, test, URIFILTER_KEY=key)
    items = [fingerprint, f"{A}?b=1", A]
    assert seen(any_server, *items) == [
        each == key for each in ("fingerprint", "url", "test_scrapy_parts.without_query")
    ]


@pytest.mark.parametrize("made", [{}, {"URIFILTER_CAPACITY": None}], ids=["settings", "as it is"])
def test_a_filter_of_other_items(any_server, made):
    """It remembers the key of the crawl that has made it, and refuses another; one that was made by hand takes any."""

    async def test(crawler, dupefilter): ...

    run(any_server, test, URIFILTER_KEY="url", **made)
    for other in ("fingerprint", without_query):
        with pytest.raises(ConfigMismatch, match="that is 'url', and not '(finger|function)"):
            run(any_server, test, URIFILTER_KEY=other, **made)
    run(any_server, test, URIFILTER_KEY="url", **made)
    UriFilter.create("other", redis=any_server.url, capacity=10_000).close()
    for any_key in ("fingerprint", "url"):
        run(any_server, test, URIFILTER_KEY=any_key, URIFILTER_NAME="other", **made)


def without_query(request):
    return request.url.partition("?")[0]


def test_dropped_after_the_middleware(any_server):
    """A request that was answered "new" and did not reach the scheduler is new again once its page is done."""

    async def test(crawler, dupefilter):
        middleware = UriSpiderMiddleware.from_crawler(crawler)
        kept, _ = await passed(middleware, scrapy.Request(A), scrapy.Request(B))
        assert not dupefilter.request_seen(kept)
        assert seen(any_server, *map(Judge.of(crawler).item, (scrapy.Request(A), scrapy.Request(B)))) == [True, True]
        pages_are_done(crawler)
        left = await passed(middleware, scrapy.Request(A), scrapy.Request(B))
        assert [each.url for each in left] == [B]

    run(any_server, test)


def test_a_response_of_another_request(any_server):
    """If a middleware changes a response's request, the page is done with those that are scraped at its time."""

    async def test(crawler, dupefilter):
        middleware, active = UriSpiderMiddleware.from_crawler(crawler), crawler.engine.scraper.slot.active
        first, later = scrapy.Request("https://example.com/first"), scrapy.Request("https://example.com/later")

        async def result():
            yield scrapy.Request(A)

        active.add(first)
        response = Response(first.url, request=first.copy())
        assert [each.url async for each in middleware.process_spider_output(response, result())] == [A]
        assert await passed(middleware, scrapy.Request(A)) == []
        active.clear()
        active.add(later)
        Judge.of(crawler).look()
        assert [each.url for each in await passed(middleware, scrapy.Request(A))] == [A]

    run(any_server, test)


def test_judged_and_never_yielded(any_server):
    """Whoever stops reading a page's output in the middle leaves its other requests new."""

    async def test(crawler, dupefilter):
        middleware = UriSpiderMiddleware.from_crawler(crawler)

        async def result():
            for url in (A, B, C):
                yield scrapy.Request(url)

        source = middleware.process_start(result())
        assert not dupefilter.request_seen(await anext(source))
        await source.aclose()
        left = await passed(middleware, scrapy.Request(A), scrapy.Request(B), scrapy.Request(C))
        assert [each.url for each in left] == [B, C]

    run(any_server, test)


def test_a_closing_crawl_gives_back(any_server):
    """All requests on their way to the scheduler, and in its memory, are new again after the crawl."""

    async def main():
        crawler = crawler_of(any_server)
        async with opened(crawler) as dupefilter:
            kept, _ = await passed(UriSpiderMiddleware.from_crawler(crawler), scrapy.Request(A), scrapy.Request(B))
            dupefilter.request_seen(kept)
            return [Judge.of(crawler).item(scrapy.Request(each)) for each in (A, B)]

    assert seen(any_server, *asyncio.run(main())) == [True, False]


def test_a_start_that_never_ends(any_server):
    """A batch ends 50 ms after its first request, so that requests of an endless ``start()`` go on."""

    async def test(crawler, dupefilter):
        async def start():
            yield scrapy.Request(A)
            yield scrapy.Request(B)
            await asyncio.sleep(1000)

        async def two():
            source = UriSpiderMiddleware.from_crawler(crawler).process_start(start())
            return [(await anext(source)).url for _ in range(2)]

        assert await asyncio.wait_for(two(), 10) == [A, B]

    run(any_server, test)


def test_batches():
    """A batch has 500 objects at most; the source's error comes after all that it yielded."""

    async def source():
        for number in range(2 * MOST + 1):
            yield scrapy.Request(f"{A}/{number}")
        raise KeyError("here")

    async def main():
        gathering, sizes = Gathering(source()), []
        with pytest.raises(KeyError, match="here"):
            while batch := await gathering.batch():
                sizes.append(len(batch))
        gathering.close()
        return sizes

    assert asyncio.run(main()) == [MOST, MOST, 1]


def test_an_item_waits_for_nobody():
    """Objects that are no requests go on at once."""

    async def source():
        yield {"an": "item"}
        await asyncio.sleep(1000)

    async def main():
        gathering = Gathering(source())
        try:
            return await asyncio.wait_for(gathering.batch(), 10)
        finally:
            gathering.close()

    assert asyncio.run(main()) == [{"an": "item"}]


def test_cancelled_as_it_asks(make_server):
    """Ctrl-C cancels ``start()``; items that the filter inserts then are given back as the crawl closes."""
    server = make_server()

    async def start():
        yield scrapy.Request(B)

    async def main():
        crawler = crawler_of(server)
        async with opened(crawler) as dupefilter:
            middleware = UriSpiderMiddleware.from_crawler(crawler)
            (first,) = await passed(middleware, scrapy.Request(A))  # the server has the script from here
            assert not dupefilter.request_seen(first)
            server.suspend()
            reading = asyncio.ensure_future(anext(middleware.process_start(start())))
            while not Judge.of(crawler)._asking:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it is sent
            reading.cancel()
            await asyncio.wait([reading])
            server.resume()
        return [Judge.of(crawler).item(scrapy.Request(each)) for each in (A, B)]

    assert seen(server, *asyncio.run(main())) == [True, False]


def test_a_start_that_goes_on_as_the_spider_closes(any_server):
    """Requests that reach the scheduler too late to be fetched stay new."""

    async def main():
        crawler = crawler_of(any_server)
        async with opened(crawler) as dupefilter:
            assert not dupefilter.request_seen(scrapy.Request(A))
            closing = asyncio.ensure_future(maybe_deferred_to_future(dupefilter.close("finished")))
            await asyncio.sleep(0)
            assert not dupefilter.request_seen(scrapy.Request(B))
            await closing
            assert not dupefilter.request_seen(scrapy.Request(C))
        return [Judge.of(crawler).item(scrapy.Request(each)) for each in (A, B, C)]

    assert seen(any_server, *asyncio.run(main())) == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_a_doubt_as_the_crawl_closes(any_server, alone):
    """A request whose answer was lost, and that waits in memory as the spider closes, is new again."""
    with Proxy(any_server.port) as proxy:

        async def main():
            crawler = crawler_of(any_server, URIFILTER_REDIS_URL=proxy.url, URIFILTER_TIMEOUT=0.5)
            async with opened(crawler) as dupefilter:
                if not alone:
                    UriDownloaderMiddleware(crawler)
                assert not dupefilter.request_seen(scrapy.Request(A))
                proxy.plan = lambda _: Fault.CUT_AFTER
                lost = scrapy.Request(B)
                assert dupefilter.request_seen(lost) is alone
                proxy.plan = never
                if not alone:
                    crawler.engine.keep_in_memory(lost)
            return [Judge.of(crawler).item(scrapy.Request(each)) for each in (A, B)]

        items = asyncio.run(main())
    assert seen(any_server, *items) == [True, False]


@pytest.mark.parametrize("how", ["exception", "status", "in process_response"])
def test_a_failed_page_is_new_again(any_server, how):
    """After the crawl, the address and all that redirected to it are new again; nothing else is, and not before."""

    async def test(crawler, dupefilter):
        downloads, pages = UriDownloaderMiddleware(crawler), UriSpiderMiddleware(crawler)
        first, fetched = await passed(pages, scrapy.Request(A), scrapy.Request("https://example.com/fetched"))
        for each in (first, fetched):
            assert not dupefilter.request_seen(each)
            assert downloads.process_request(each) is None
        downloads.process_response(fetched, Response(fetched.url, status=404))
        last = redirected(redirected(first, B), C)
        for each in (redirected(first, B), last):
            crawler.signals.send_catch_log(signals.request_scheduled, request=each, spider=crawler.spider)
        middle = redirected(first, B)
        assert not dupefilter.request_seen(middle)
        last = redirected(middle, C)
        assert not dupefilter.request_seen(last)
        retried = last.replace(dont_filter=True)
        assert downloads.process_request(retried) is None
        if how == "exception":
            downloads.process_exception(retried, OSError())
        elif how == "status":
            downloads.process_response(retried, Response(C, status=503))
        else:  # as Scrapy's redirects do if there are too many
            pages_are_done(crawler)
        requests = [scrapy.Request(each) for each in (A, B, C, fetched.url)]
        if how == "in process_response":
            pages_are_done(crawler)
        assert await passed(pages, *requests) == []
        return [Judge.of(crawler).item(each) for each in requests]

    assert seen(any_server, *run(any_server, test)) == [False, False, False, True]


@pytest.mark.parametrize("how", ["callback", "pipeline"])
def test_a_page_that_was_fetched_in_vain(any_server, how):
    """If its callback or a pipeline raises, it is not asked about again in this crawl, and new for the next one."""

    async def test(crawler, dupefilter):
        downloads, pages = UriDownloaderMiddleware(crawler), UriSpiderMiddleware(crawler)
        (request,) = await passed(pages, scrapy.Request(A))
        assert not dupefilter.request_seen(request)
        downloads.process_request(request)
        response = downloads.process_response(request, Response(A, request=request))
        if how == "callback":
            pages.process_spider_exception(response, KeyError())
        else:
            told = {"item": {}, "response": response, "spider": crawler.spider, "failure": Failure(KeyError())}
            crawler.signals.send_catch_log(signals.item_error, **told)
        pages_are_done(crawler)
        assert await passed(pages, scrapy.Request(A)) == []
        return Judge.of(crawler).item(request)

    assert seen(any_server, run(any_server, test)) == [False]


def test_a_redirect_that_was_seen_ends_there(any_server):
    """The page that it leads to is left alone if the download of another page fails."""

    async def test(crawler, dupefilter):
        downloads, pages = UriDownloaderMiddleware(crawler), UriSpiderMiddleware(crawler)
        one, two = await passed(pages, scrapy.Request(A), scrapy.Request(B))
        assert [dupefilter.request_seen(each) for each in (one, two, redirected(one, B))] == [False, False, True]
        copied = scrapy.Request(C, meta=one.meta, dont_filter=True)
        downloads.process_request(copied)
        downloads.process_exception(copied, OSError())
        assert await passed(pages, scrapy.Request(A), scrapy.Request(B)) == []

    run(any_server, test)


def test_passed_without_the_dupefilter(any_server):
    """A request that gets dont_filter after it was answered "new" stays seen as it is downloaded."""

    async def test(crawler, dupefilter):
        downloads, pages = UriDownloaderMiddleware(crawler), UriSpiderMiddleware(crawler)
        (new,) = await passed(pages, scrapy.Request(A))
        unfiltered = new.replace(dont_filter=True)
        crawler.engine._slot.inprogress.add(unfiltered)
        downloads.process_request(unfiltered)
        pages_are_done(crawler)
        assert await passed(pages, scrapy.Request(A)) == []

    run(any_server, test)


@pytest.mark.slow
def test_redis_is_away_pause(make_server):
    """While Redis is away the middleware waits, and the dupefilter waits once and leaves its question for later."""
    server = make_server(appendonly="yes", appendfsync="always")

    async def test(crawler, dupefilter):
        downloads, pages = UriDownloaderMiddleware(crawler), UriSpiderMiddleware(crawler)
        (known,) = await passed(pages, scrapy.Request(A))
        assert not dupefilter.request_seen(known)
        server.kill()
        later = [scrapy.Request(A), scrapy.Request(B)]
        assert [dupefilter.request_seen(each) for each in later] == [False, False]
        crawler.engine._slot.inprogress.update(later)
        asked = [asyncio.ensure_future(downloads.process_request(each)) for each in later]
        page = asyncio.ensure_future(passed(pages, scrapy.Request(A), scrapy.Request(C)))
        done, _ = await asyncio.wait([page, *asked], timeout=0.5)
        assert not done
        server.start()
        with pytest.raises(IgnoreRequest):
            await asked[0]
        await asked[1]
        assert [each.url for each in await page] == [C]
        assert dupefilter.request_seen(scrapy.Request(B))
        assert crawler.stats.get_value("urifilter/errors") > 0

    run(server, test, URIFILTER_TIMEOUT=0.5)


@pytest.mark.slow
def test_no_more_pages_are_read(make_server):
    """While 10,000 requests wait for Redis, other pages are not read; then all of them are asked about."""
    server, count = make_server(appendonly="yes", appendfsync="always"), MOST_HELD // MOST + 5

    async def test(crawler, dupefilter):
        pages, begun, new = UriSpiderMiddleware(crawler), set(), []
        judge = Judge.of(crawler)

        async def page(number):
            async def result():
                for link in range(MOST):
                    begun.add(number)
                    yield scrapy.Request(f"{A}/{number}/{link}")

            output = pages.process_spider_output(Response(A, request=scrapy.Request(A)), result())
            new.extend([each async for each in output])

        server.kill()
        tasks = []
        for number in range(count):
            tasks.append(asyncio.ensure_future(page(number)))
            while judge._held < min((number + 1) * MOST, MOST_HELD):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(begun) == MOST_HELD // MOST
        server.start()
        await asyncio.gather(*tasks)
        assert len(new) == count * MOST

    run(server, test, URIFILTER_TIMEOUT=0.5, URIFILTER_CAPACITY=100_000)


@pytest.mark.slow
def test_redis_is_away_pause_alone(make_server):
    """A dupefilter alone keeps its requests, and the spider open, until Redis is back."""
    server = make_server(appendonly="yes", appendfsync="always")

    async def test(crawler, dupefilter):
        assert not dupefilter.request_seen(scrapy.Request(A))
        server.kill()
        later = [scrapy.Request(A), scrapy.Request(B)]
        assert [dupefilter.request_seen(each) for each in later] == [True, True]
        for each in later:
            dupefilter.log(each, crawler.spider)
        assert crawler.stats.get_value("dupefilter/filtered") is None
        told = crawler.signals.send_catch_log(signals.spider_idle, spider=crawler.spider)
        assert any("DontCloseSpider" in repr(each) for _, each in told)
        server.start()
        while Judge.of(crawler).is_held(later[1]):
            await asyncio.sleep(0.01)
        assert crawler.stats.get_value("dupefilter/filtered") == 1
        assert crawler.engine.scheduled == later[1:]

    run(server, test, URIFILTER_TIMEOUT=0.5)


@pytest.mark.slow
def test_redis_is_away_pass(make_server):
    """With "pass" requests go on without an answer, at once after the first and once each, and are recorded later."""
    server = make_server(appendonly="yes", appendfsync="always")

    async def test(crawler, dupefilter):
        downloads, pages = UriDownloaderMiddleware(crawler), UriSpiderMiddleware(crawler)
        server.kill()
        left = await passed(pages, *map(scrapy.Request, (A, A, B, C)))
        assert [each.url for each in left] == [A, B, C]
        assert [dupefilter.request_seen(each) for each in left] == [False] * 3
        assert dupefilter.request_seen(scrapy.Request(A))
        assert await passed(pages, scrapy.Request(A)) == []
        assert crawler.stats.get_value("urifilter/unasked") == 3
        good, bad, later = left
        for each in (good, bad):
            await downloads.process_request(each)
        downloads.process_response(good, Response(A, request=good))
        downloads.process_exception(bad, OSError())
        pages_are_done(crawler)
        server.start()
        while Judge.of(crawler).link.away:
            await asyncio.sleep(0.01)
        with UriFilter.open("news", redis=server.url) as news:
            news.insert(Judge.of(crawler).item(later))
        with pytest.raises(IgnoreRequest):
            await downloads.process_request(later)
        return [Judge.of(crawler).item(each) for each in left]

    items = run(server, test, URIFILTER_ON_ERROR="pass", URIFILTER_TIMEOUT=0.3)
    assert seen(server, *items) == [True, False, True]


def test_redis_leaves_as_a_late_question_is_asked(any_server):
    """With "pass" a page whose own address was not recorded gives back the addresses before it, and not its own."""

    async def test(crawler, dupefilter):
        downloads = UriDownloaderMiddleware(crawler)
        judge = Judge.of(crawler)
        judge.outcomes.note(["another"], Outcome.DROPPED)
        late = scrapy.Request(A)
        assert not dupefilter.request_seen(late)  # its answer would not be true any more
        judge.link.ask = lambda items, _: asyncio.sleep(0, [Answer.PASS for _ in items])
        await downloads.process_request(late)
        judge.link.passed[judge.item(late)] = None
        downloads.process_exception(late, OSError())
        assert judge.outcomes.failed.keys() == {judge.item(late)}
        with UriFilter.open("news", redis=any_server.url) as news:
            news.insert(judge.item(late))
        return judge.item(late)

    assert seen(any_server, run(any_server, test, URIFILTER_ON_ERROR="pass")) == [True]


@pytest.mark.parametrize("name", ["_slot", "_slot.inprogress", "scraper.slot.active"])
def test_a_scrapy_that_is_too_new(any_server, name):
    """The crawl does not begin if a later Scrapy has another name for something that is needed."""
    crawler = crawler_of(any_server)
    *path, last = name.split(".")
    holder = crawler.engine
    for each in path:
        holder = getattr(holder, each)
    delattr(holder, last)
    with pytest.raises(NotSupported, match=f"whose engine has no .*{name}.*: install Scrapy 2.13 to"):
        asyncio.run(Judge.of(crawler).open())
    assert not engine.is_closing(crawler)


def test_settings(any_server):
    """Settings of the command line are text; they become the filter's."""
    crawler = crawler_of(
        any_server,
        URIFILTER_ERROR_RATE="1e-3",
        URIFILTER_CAPACITY="5000",
        URIFILTER_AGAIN_AFTER="30d",
        URIFILTER_TIMEOUT="2",
    )
    options = Options.of(crawler)
    assert options.filter == {
        "capacity": 5000, "error_rate": 1e-3, "retention": "rolling", "slices": 11, "period": 3 * 86400,
    }  # fmt: skip
    assert options.where == {"redis": any_server.url, "timeouts": Timeouts(total=2)}
    assert options.failed == {500, 502, 503, 504, 522, 524, 408, 429}
    assert Options.of(get_crawler(scrapy.Spider, {"BOT_NAME": "bot"})).name == "bot"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"URIFILTER_ON_ERROR": "wait"}, "URIFILTER_ON_ERROR is one of pause, pass, close"),
        ({"URIFILTER_KEY": "uri"}, "URIFILTER_KEY is fingerprint, url, or a function"),
        ({"URIFILTER_LAYOUT": "round"}, "URIFILTER_LAYOUT: layout is"),
        ({"URIFILTER_SEED": "x"}, "URIFILTER_SEED: "),
        ({"URIFILTER_AGAIN_AFTER": "soon"}, "URIFILTER_AGAIN_AFTER: a period is"),
        ({"URIFILTER_LARGE": "maybe"}, "URIFILTER_LARGE: "),
        ({"URIFILTER_FAILED_CODES": "5xx"}, "URIFILTER_FAILED_CODES: .*5xx"),
        ({"URIFILTER_CAPICITY": 5}, "URIFILTER_CAPICITY is no setting: URIFILTER_CAPACITY is meant"),
        ({"URIFILTER_ON_ERRORS": "pass"}, "URIFILTER_ON_ERROR is meant"),
        ({"URIFILTER_XYZ": 5}, "URIFILTER_XYZ is no setting: after URIFILTER_ comes AGAIN_AFTER, "),
        ({"URIFILTER_CAPACITY": "many"}, "URIFILTER_CAPACITY is a whole number and not 'many'"),
        ({"URIFILTER_NEAR_CACHE_SECONDS": "long"}, "URIFILTER_NEAR_CACHE_SECONDS is a number and not 'long'"),
        ({"URIFILTER_TIMEOUT": "0"}, "URIFILTER_TIMEOUT is a number of seconds above 0 and not 0"),
        ({"URIFILTER_AGAIN_AFTER": "30d", "URIFILTER_SLICES": 3}, "leave out URIFILTER_SLICES"),
    ],
)
def test_impossible_settings(any_server, settings, said):
    """They are refused before the crawl begins, with the possible ones."""
    with pytest.raises(ValueError, match=said):
        UriDupeFilter.from_crawler(crawler_of(any_server, **settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"URIFILTER_REDIS_URL": "localhost"}, "URIFILTER_REDIS_URL"),
        ({"URIFILTER_NEAR_CACHE": "-1"}, "URIFILTER_NEAR_CACHE"),
        ({"URIFILTER_ROTATE": "sometimes"}, "URIFILTER_ROTATE"),
    ],
)
def test_settings_that_cannot_be_opened(any_server, settings, said):
    """They are refused, by their names, as the filter is opened."""
    with pytest.raises(ValueError, match=said):
        run(any_server, None, **settings)


def test_other_settings_than_the_filters(any_server):
    """Settings that a filter does not have are refused; without any, the filter is taken as it is."""
    UriFilter.create("news", redis=any_server.url, capacity=10_000, layout="classic").close()
    with pytest.raises(ConfigMismatch, match="layout"):
        run(any_server, None, URIFILTER_LAYOUT="blocked")

    async def test(crawler, dupefilter):
        return dupefilter.request_seen(scrapy.Request(A))

    assert run(any_server, test, URIFILTER_CAPACITY=None) is False


def test_places_of_the_middlewares():
    """A crawl warns of a middleware of the add-on in a place where it cannot do its work."""
    ours = ("SPIDER", UriSpiderMiddleware), ("DOWNLOADER", UriDownloaderMiddleware)

    def warnings(*places):
        made = {f"{kind}_MIDDLEWARES": {each: place} for (kind, each), place in zip(ours, places, strict=True)}
        return misplaced(get_crawler(scrapy.Spider, made).settings)

    assert warnings(10, 40) == []
    spider, downloader = warnings(900, 600)
    assert spider.startswith("UriSpiderMiddleware needs the lowest number in SPIDER_MIDDLEWARES: 900 is above that of")
    assert downloader.startswith("UriDownloaderMiddleware needs a lower number in DOWNLOADER_MIDDLEWARES than 600")


@pytest.mark.slow
def test_nothing_is_left_of_a_crawl(any_server):
    """A process may run any number of crawls."""

    async def test(crawler, dupefilter):
        UriSpiderMiddleware(crawler), UriDownloaderMiddleware(crawler)

    run(any_server, test)
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Judge)] == []
