"""The parts for Scrapy without claims: what waits as a spider closes is there for the next crawl of that spider."""

from __future__ import annotations

import asyncio
from functools import partial
from unittest.mock import Mock

import pytest

# before 2.15, Scrapy runs coroutines in a reactor only
scrapy = pytest.importorskip("scrapy", "2.15", reason="Scrapy 2.15 is not installed: pip install '.[scrapy]'")

from scrapy.exceptions import CloseSpider  # noqa: E402
from scrapy.utils.defer import maybe_deferred_to_future  # noqa: E402
from support.scrapy_parts import DEEP, A, B, C, Parts, Spider, crawler_of, kept, opened, redirected, run, seen  # noqa: E402
from support.scrapy_parts import in_a_crawl as in_any_crawl  # noqa: E402

from urifilter_redis import UriFilter  # noqa: E402
from urifilter_redis.scrapy.keeping import holder_of  # noqa: E402

BY_URL = {"URIFILTER_KEY": "url"}

in_a_crawl = partial(in_any_crawl, spider=Spider, **BY_URL)


def crawled(server, test, **settings):
    return run(server, test, **({"spider": Spider} | BY_URL | settings))


async def leave_two(parts):
    """A page is fetched, and what it links to is not."""
    start = await parts.begun(scrapy.Request(A))
    about = scrapy.Request(B, parts.crawler.spider.about, "POST", body=b"\xff", cb_kwargs={"depth": 1}, priority=3)
    await parts.fetched(start, about, scrapy.Request(C))


async def taken_up(parts):
    """The addresses of what is taken up; all of it is fetched."""
    found = parts.waiting()
    for each in found:
        await parts.fetched(each)
    return sorted(each.url for each in found)


def test_the_next_crawl_fetches_it(any_server):
    """It has its method, body, callback and arguments; it is seen from then on, and the crawl after it begins empty."""

    async def test(parts):
        by_url = {each.url: each for each in parts.waiting()}
        about = by_url[B]
        assert (about.callback, about.cb_kwargs) == (parts.crawler.spider.about, {"depth": 1})
        assert (about.method, about.body, about.priority) == ("POST", b"\xff", 3)
        assert parts.stats.get_value("urifilter/taken_up") == 2
        assert await parts.found(scrapy.Request(C)) == []
        for each in by_url.values():
            await parts.fetched(each)
        return [parts.item(each) for each in by_url.values()]

    crawled(any_server, leave_two)
    assert len(kept(any_server)) == 2
    items = crawled(any_server, test)
    assert all(seen(any_server, *items))
    assert kept(any_server) == set()
    assert crawled(any_server, taken_up) == []


def test_it_is_kept_again(any_server):
    """A crawl that is stopped before it has fetched what it has taken up leaves it to the next one."""

    async def stopped(parts):
        await parts.fetched(parts.scheduler.next_request())

    crawled(any_server, leave_two)
    crawled(any_server, stopped)
    assert len(crawled(any_server, taken_up)) == 1


@pytest.mark.parametrize("taken", [0, 1])
def test_a_queue_that_raises_as_it_takes_up(any_server, taken):
    """What it does not take is left to the next crawl once more."""

    async def main():
        parts = Parts(crawler_of(any_server, spider=Spider, **BY_URL))
        parts.scheduler._inner.enqueue_request = Mock(side_effect=[True] * taken + [OSError("full")])
        with pytest.raises(OSError, match="full"):
            await maybe_deferred_to_future(parts.scheduler.open(parts.crawler.spider))
        await maybe_deferred_to_future(parts.scheduler.close("shutdown"))

    crawled(any_server, leave_two)
    asyncio.run(main())
    assert len(crawled(any_server, taken_up)) == 2 - taken


def test_what_others_have_in_flight_is_theirs(any_server):
    """Also if its payload is a request of this spider."""
    crawled(any_server, leave_two)
    with UriFilter.open("news", redis=any_server.url) as news, news.claims() as mine:
        text = next(each.payload for each in news.in_flight() if each.item == C)
        assert mine.claim_many(["https://example.com/d"], payload=lambda _: text) == [True]
        assert crawled(any_server, taken_up) == [B, C]
        assert [each.item for each in news.in_flight()] == ["https://example.com/d"]


def test_five_spiders_of_a_filter(any_server):
    """Each takes up what a spider of its own name has left."""
    spiders = [type("Named", (Spider,), {"name": f"spider{n}"}) for n in range(5)]
    urls = [f"https://example.com/{n}" for n in range(5)]

    async def leave(parts):
        parts.enqueue(scrapy.Request(urls[spiders.index(type(parts.crawler.spider))]))

    def settings(spider):
        crawler = crawler_of(any_server, spider, **BY_URL)
        crawler.spider = crawler.engine.spider = spider(name=spider.name)
        return crawler

    async def main(test):
        found = []
        for each in spiders:
            async with opened(settings(each)) as parts:
                found.append(await test(parts))
        return found

    asyncio.run(main(leave))
    assert kept(any_server) == set(urls)
    assert asyncio.run(main(taken_up)) == [[url] for url in urls]


@pytest.mark.parametrize("stops", [False, True])
def test_lapsed_before_the_next_crawl(any_server, stops):
    """A crawl of another spider that takes over what has lapsed gives it back, also if it is stopped meanwhile."""
    crawled(any_server, leave_two)
    any_server.client().zadd("urifilter:{news:0}:holders", {bytes.fromhex(holder_of("spider")): 1})

    async def other(parts):
        parts.crawler.spider.name = "other"
        assert parts.crawl.reclaiming.stays()
        await asyncio.sleep(0)
        if not stops:
            await parts.idle()
            assert (parts.waiting(), parts.crawl.link.held) == ([], set())

    crawled(any_server, other, URIFILTER_CLAIM=True, URIFILTER_LEASE=5)
    assert len(kept(any_server)) == 2
    assert crawled(any_server, taken_up) == [B, C]


def test_two_crawls_at_once(any_server):
    """Of two that begin together one gets each page."""
    crawled(any_server, leave_two)

    async def main():
        one, two = (crawler_of(any_server, Spider, **BY_URL) for _ in range(2))
        async with opened(one) as first, opened(two) as second:
            return await taken_up(first) + await taken_up(second)

    assert sorted(asyncio.run(main())) == [B, C]


@in_a_crawl()
async def test_one_that_others_claim(parts, any_server):
    """A page that another crawl finds between its end here and the close is that crawl's."""
    await parts.queued(scrapy.Request(A))
    keep = parts.crawl.keeping.keep

    async def late():
        with UriFilter.open("news", redis=any_server.url) as news:
            assert news.insert(A)
        await keep()

    parts.crawl.keeping.keep = late
    yield
    assert kept(any_server) == set()


def test_a_page_that_is_wanted_again(any_server):
    """It was seen by an earlier crawl, so it has no item that could be given back; it is kept all the same."""

    async def leave(parts):
        await parts.queued(scrapy.Request(B, meta={"urifilter": "again"}))

    async def closes(parts):
        await parts.fetched(await parts.begun(scrapy.Request(B, meta={"urifilter": "again"})), CloseSpider())

    crawled(any_server, leave)
    for left in (leave, closes):
        assert crawled(any_server, taken_up) == [B]
        assert crawled(any_server, taken_up) == []
        crawled(any_server, left)
    assert crawled(any_server, taken_up) == [B]


@pytest.mark.parametrize("how", ["closes", "half-way", "dont_filter", "unasked", "again", "retry", "redirect"])
def test_what_is_kept(any_server, how):
    """Pages that a callback closed, requests with dont_filter, and those that nobody was asked about, are kept, too."""

    async def leave(parts):
        if how == "closes":
            await parts.fetched(await parts.begun(scrapy.Request(B)), CloseSpider())
        elif how == "half-way":
            await parts.begun(scrapy.Request(B))
        elif how == "dont_filter":
            await parts.queued(scrapy.Request(B, dont_filter=True))
        elif how == "unasked":
            parts.enqueue(scrapy.Request(B))
            assert parts.scheduler.held == 1
        elif how == "again":
            await parts.queued(scrapy.Request(B, meta={"urifilter": "again"}))
        elif how == "retry":
            await parts.queued((await parts.begun(scrapy.Request(B))).replace(dont_filter=True))
        else:
            await parts.queued(redirected(await parts.begun(scrapy.Request(A)), B))

    crawled(any_server, leave)
    assert crawled(any_server, taken_up) == [B]
    assert kept(any_server) == set()


@in_a_crawl()
async def test_starts_are_not_kept(parts, caplog):
    """The next crawl begins with them, and would fetch them twice."""
    await parts.queued(*await parts.starts(scrapy.Request(A), scrapy.Request(B, dont_filter=True)))
    yield
    assert parts.seen(A, B) == [False, False]
    assert "cannot be kept" not in caplog.text


@pytest.mark.parametrize("what", ["callback", "meta"])
def test_one_that_is_not_whole(any_server, caplog, what):
    """A request that cannot be kept whole is kept as it is sent, and the log says what was left out; so are others."""

    async def leave(parts):
        more = {"callback": {"callback": lambda _: None}, "meta": {"meta": {"data": DEEP}}}[what]
        await parts.queued(scrapy.Request(B, **more), scrapy.Request(C))

    crawled(any_server, leave)
    assert f"<GET {B}> is kept for parse(), without {what} (" in caplog.text
    assert crawled(any_server, taken_up) == [B, C]


def test_one_that_is_too_long(any_server, caplog):
    """An item that cannot be claimed is not kept, and others are."""
    key = {"URIFILTER_KEY": lambda request: request.url.replace(B, "x" * 70_000)}

    async def leave(parts):
        await parts.queued(scrapy.Request(B), scrapy.Request(C))

    crawled(any_server, leave, **key)
    assert "1 pages were found and not fetched, and cannot be kept" in caplog.text
    assert crawled(any_server, taken_up, **key) == [C]


def test_one_that_cannot_be_read(any_server, caplog):
    """It stays where it is, until there is a spider that can fetch it."""
    crawled(any_server, leave_two)
    assert crawled(any_server, taken_up, spider=scrapy.Spider) == [C]
    assert "was kept by an earlier crawl, and cannot be fetched" in caplog.text
    assert crawled(any_server, taken_up) == [B]


@pytest.mark.parametrize("settings", [{"JOBDIR": "jobs"}, {"URIFILTER_CLEAR": True}, {"URIFILTER_CLAIM": True}])
def test_kept_elsewhere(any_server, tmp_path, settings):
    """With JOBDIR and claims what waits is kept as before, and with URIFILTER_CLEAR nothing."""
    settings = {name: str(tmp_path) if name == "JOBDIR" else value for name, value in settings.items()}

    async def leave(parts):
        assert parts.crawl.keeping is None
        await parts.queued(scrapy.Request(B))

    crawled(any_server, leave, **settings)
    assert kept(any_server) == set()


def test_holders():
    """The holder of a spider's name is the same in each process, and differs from those of other names."""
    assert holder_of("spider") == "5c" + holder_of("spider")[2:]
    assert holder_of("spider") != holder_of("other")
    assert len(holder_of("spider")) == 16
