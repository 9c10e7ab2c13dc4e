"""The parts for Scrapy with URIFILTER_CLAIM: what becomes of a claim at each end of a request."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import sys
from collections import Counter
from functools import partial
from unittest.mock import Mock

import pytest

# before 2.15, Scrapy runs coroutines in a reactor only
scrapy = pytest.importorskip("scrapy", "2.15", reason="Scrapy 2.15 is not installed: pip install '.[scrapy]'")

from scrapy import signals  # noqa: E402
from scrapy.exceptions import CloseSpider, IgnoreRequest  # noqa: E402
from scrapy.http import FormRequest, JsonRequest  # noqa: E402
from scrapy.utils.defer import maybe_deferred_to_future  # noqa: E402
from support.scrapy_parts import DEEP, A, B, C, Spider, crawler_of, opened, redirected  # noqa: E402
from support.scrapy_parts import in_a_crawl as in_any_crawl  # noqa: E402

from urifilter_redis import AsyncClaims, Claim, ServerUnavailable, UriFilter  # noqa: E402
from urifilter_redis.scrapy import UriSpiderMiddleware  # noqa: E402
from urifilter_redis.scrapy.link import Answer  # noqa: E402
from urifilter_redis.scrapy.options import Options  # noqa: E402
from urifilter_redis.scrapy.payloads import kept_of, text_of, to_request, url_of  # noqa: E402

pytestmark = pytest.mark.slow

CLAIM = {"URIFILTER_CLAIM": True, "URIFILTER_KEY": "url", "URIFILTER_LEASE": 5, "URIFILTER_CLAIM_DELAY": 0}


def crawl(server, **settings):
    return crawler_of(server, Spider, **(CLAIM | settings))


#: An async test of the parts of a crawl with claims.
in_a_crawl = partial(in_any_crawl, spider=Spider, **CLAIM)


def state(server, url) -> str:
    """``new``, ``in flight`` or ``committed``."""
    with UriFilter.open("news", redis=server.url) as news:
        (age,) = news.ages([url])
    return {0: "new", -1: "in flight"}.get(age, "committed")


@contextlib.contextmanager
def another(server):
    """Another crawl's claims."""
    with UriFilter.open("news", redis=server.url) as news, news.claims(lease=5) as mine:
        yield mine


def left(server) -> dict:
    """What a crawl has left: claims by their items."""
    with another(server) as mine:
        return {claim.item: claim for claim in mine.reclaim()}


def payload(url, name="spider", **fields):
    return json.dumps({"spider": name, "request": {"url": url, **fields}})


@in_a_crawl()
async def test_committed_once_all_was_handled(parts, any_server):
    """A page is in flight until its output has ended, its links are answered, and its items have left the pipelines."""
    response = parts.response(await parts.begun(scrapy.Request(A)))
    assert state(any_server, A) == "in flight"
    output = scrapy.Request(B), scrapy.Request(C, dont_filter=True), {"an": "item"}
    assert len([each async for each in parts.passed(response, *output)]) == 3
    for each in output[:2]:
        await parts.answered()
        assert (state(any_server, A), state(any_server, C)) == ("in flight", "new")
        parts.enqueue(each)
    await parts.answered()
    assert (state(any_server, A), state(any_server, B)) == ("in flight", "in flight")
    parts.tell(signals.item_scraped, item={}, response=response)
    await parts.answered()
    assert (state(any_server, A), state(any_server, B)) == ("committed", "in flight")
    assert parts.stats.get_value("urifilter/committed") == 1


@pytest.mark.parametrize("how", ["a handler", "a middleware"])
@in_a_crawl()
async def test_a_link_that_is_dropped(parts, any_server, how):
    """Its page is committed: at once if a signal's handler drops it, else as the spider is idle."""
    parts.refuse(B)
    response, link = parts.response(await parts.begun(scrapy.Request(A))), scrapy.Request(B)
    assert [each async for each in parts.passed(response, link)] == [link]
    if how == "a handler":
        parts.enqueue(link)
    await parts.answered()
    if how == "a middleware":
        assert state(any_server, A) == "in flight"
        assert not await parts.idle()
    await parts.answered()
    assert (state(any_server, A), state(any_server, B)) == ("committed", "new")


@pytest.mark.parametrize("how", ["callback", "half-way", "closes", "exception", "status", "vanished", "pipeline"])
@in_a_crawl()
async def test_what_failed_is_offered_again(parts, any_server, how):
    """A failure is counted for a download that failed and a callback that raised, and not for one that closes."""
    request = await parts.begun(scrapy.Request(A))
    if how == "closes":
        await parts.fetched(request, CloseSpider())
    elif how == "vanished":  # a middleware has made another request of it, for example
        parts.crawl.fetches.end_all(parts.crawl.fetches.of(request).outcome)
    else:
        await parts.fails(request, how, scrapy.Request(A))
    await parts.answered()
    assert parts.crawl.link.held == set()
    claim = left(any_server)[A]
    yield
    assert (claim.failures, claim.lapses) == (0 if how == "closes" else 1, 0)


@pytest.mark.parametrize("sent", [False, True])
@in_a_crawl()
async def test_ignored(parts, any_server, sent):
    """Before its download, as by robots.txt, the address is new for others; after it, the page has failed."""
    request = await parts.begun(scrapy.Request(A))
    if sent:
        parts.tell(signals.request_reached_downloader, request=request)
    await parts.failed(request, IgnoreRequest())
    assert await parts.found(scrapy.Request(A)) == []
    assert parts.crawl.link.held == set()
    yield
    assert [claim.failures for claim in left(any_server).values()] == [1] * sent


@in_a_crawl()
async def test_rejected(parts, any_server):
    """After URIFILTER_CLAIM_FAILURES tries a page is committed, and counted."""
    request = await parts.begun(scrapy.Request(A))
    for number in (1, 2, 3):
        assert state(any_server, A) == "in flight"
        await parts.failed(request, OSError())
        if number < 3:
            assert await parts.idle()
            (request,) = parts.waiting()
    assert state(any_server, A) == "committed"
    stats = parts.stats.get_stats()
    assert (stats["urifilter/rejected"], stats["urifilter/reclaimed"]) == (1, 2)
    assert not await parts.idle()


def test_growing_delays(any_server):
    """The delay doubles with each failure, to five minutes at most."""
    claiming = Options.of(crawl(any_server, URIFILTER_CLAIM_DELAY=30, URIFILTER_CLAIM_FAILURES=9)).claiming
    assert [claiming.delay_after(failures) for failures in (1, 2, 3, 8)] == [30, 60, 120, 300]
    assert claiming.longest_delay == 300


def test_an_idle_spider_takes_over(any_server):
    """It gets the requests of a crawl that stopped, with its own methods as callbacks; others wait for no answer."""

    async def main():
        first, second = crawl(any_server), crawl(any_server)
        async with opened(first) as parts:
            about = scrapy.Request(
                A, callback=first.spider.about, cb_kwargs={"depth": 2}, meta={"n": [1]}, body=b"\xff"
            )
            assert len(await parts.found(about, scrapy.Request(B))) == 2
        async with opened(second) as parts:
            assert await parts.idle()
            by_url = {each.url: each for each in parts.waiting()}
            assert by_url.keys() == {A, B}
            assert by_url[A].callback == second.spider.about
            assert (by_url[A].cb_kwargs, by_url[A].meta["n"], by_url[A].body) == ({"depth": 2}, [1], b"\xff")
            assert await parts.found(scrapy.Request(B)) == []
            for each in by_url.values():
                await parts.fetched(each)
            assert not await parts.idle()
        item = parts.item(about)  # which has a body
        assert (state(any_server, item), state(any_server, B)) == ("committed", "committed")

    asyncio.run(main())


@in_a_crawl()
async def test_taken_over_and_dropped(parts, any_server):
    """A page that a signal's handler drops, of another site for example, is left to others for ten minutes."""
    parts.refuse(A)
    with another(any_server) as mine:
        mine.claim(A, payload=payload(A))
    assert not await parts.idle()
    assert (state(any_server, A), parts.crawl.link.held) == ("in flight", set())
    yield
    assert left(any_server) == {}


@in_a_crawl()
async def test_an_idle_spider_waits_for_others(parts, any_server):
    """It stays open while another crawl has a page in flight, and closes once that is committed."""
    with another(any_server) as mine:
        mine.claim(A)
        assert await parts.idle()
        mine.commit([A])
        while await parts.idle():
            await asyncio.sleep(0.1)


@in_a_crawl()
async def test_an_idle_spider_waits_for_one_that_is_busy(parts, any_server):
    """It stays open, however late it looks again: the other calls all the time, and would be dead a lease later."""

    async def be_busy(mine):
        while True:
            mine.claim(A)
            await asyncio.sleep(0.02)

    with another(any_server) as mine:
        busy = asyncio.ensure_future(be_busy(mine))
        for _ in range(16):  # until the pause between two looks would be longer than a lease
            assert await parts.idle()
        busy.cancel()


@pytest.mark.quick
@in_a_crawl(URIFILTER_CLAIM_DELAY=20, URIFILTER_CLAIM_FAILURES=3)
async def test_an_idle_spider_waits_for_what_has_failed(parts, any_server):
    """For as long as a failure may be delayed, which is longer than a lease here."""
    with another(any_server) as mine:
        mine.claim(A, payload=payload(A))
        mine.release([A], delay=30, failed=True)
    assert await parts.idle()


@pytest.mark.parametrize(("delay", "stays"), [(3, True), (600, False)])
@in_a_crawl()
async def test_what_others_have_released(parts, any_server, delay, stays):
    """An idle spider waits for pages that others will have tried again soon, and not for those that they parked."""
    with another(any_server) as mine:
        mine.claim(A, payload=payload(A))
        mine.release([A], delay=delay)
    assert await parts.idle() is stays


@in_a_crawl(URIFILTER_CLAIM_FAILURES=1)
async def test_rejected_by_the_failures_of_others(parts, any_server):
    """A page that others have tried often enough is rejected as it is reclaimed."""
    with another(any_server) as mine:
        mine.claim(A, payload=payload(A))
        mine.release([A], failed=True)
    assert not await parts.idle()
    assert state(any_server, A) == "committed"
    assert parts.stats.get_value("urifilter/rejected") == 1


@pytest.mark.parametrize(
    ("text", "stat"),
    [
        (payload(A, "another spider"), None),
        (None, None),
        ("no JSON", "urifilter/unreadable"),
        (payload(A, callback="missing"), "urifilter/unreadable"),
        (payload(A, _class="os.path.join"), "urifilter/unreadable"),
        (json.dumps([1]), "urifilter/unreadable"),
        pytest.param("[" * 60_000, "urifilter/unreadable", id="deep"),
    ],
)
@in_a_crawl()
async def test_not_for_this_spider(parts, any_server, text, stat):
    """What this spider cannot fetch is left to others for ten minutes; the spider does not wait for it."""
    item, more = (A, {"payload": text}) if text else ({"a": [1]}, {})  # an item of another tool may be no text
    with another(any_server) as mine:
        mine.claim(item, **more)
    assert not await parts.idle()
    assert state(any_server, item) == "in flight"
    assert parts.crawl.link.held == set()
    assert stat is None or parts.stats.get_value(stat) == 1
    assert left(any_server) == {}


@in_a_crawl()
async def test_wanted_again_as_the_spider_closes(parts, any_server, caplog):
    """With claims a request without an item is not kept: the log says that it is lost."""
    with UriFilter.open("news", redis=any_server.url) as news:
        news.insert(A)
    await parts.queued(scrapy.Request(A, meta={"urifilter": "again"}))
    yield
    assert "1 requests with dont_filter, or wanted again, were not made, and are lost" in caplog.text


@in_a_crawl(URIFILTER_CLAIM_LAPSES=2)
async def test_parked(parts, any_server, caplog):
    """A page that was in the hands of crawls that died is set aside, told and counted, and never committed."""
    with UriFilter.open("news", redis=any_server.url) as news:
        for number in range(2):
            dead = news.claims(lease=5, holder=f"{number + 1:02x}" * 8, beats=False)
            assert dead.claim(A, payload=payload(A)) if number == 0 else dead.reclaim()
            any_server.client().zadd("urifilter:{news:0}:holders", {bytes.fromhex(dead.holder): 1})
    assert not await parts.idle()
    assert state(any_server, A) == "in flight"
    assert parts.stats.get_value("urifilter/parked") == 1
    assert f"{A} killed 2 crawls" in caplog.text


@in_a_crawl()
async def test_an_item_of_no_spider_that_cannot_be_given_back(parts, any_server, monkeypatch):
    """What came with it is fetched nevertheless, and the next look gives it back."""
    release, failed = AsyncClaims.release, []

    async def away(mine, items, **more):
        if not failed:
            failed.append(items)
            raise ServerUnavailable("away")
        return await release(mine, items, **more)

    monkeypatch.setattr(AsyncClaims, "release", away)
    with another(any_server) as mine:
        mine.claim({"a": [1]})
        mine.claim(A, payload=payload(A))
    while not (found := parts.waiting()):
        assert await parts.idle()
    await parts.fetched(*found)
    while await parts.idle():
        await asyncio.sleep(0.1)
    assert parts.crawl.link.held == set()
    assert len(failed) == 1
    yield
    assert state(any_server, A) == "committed"
    assert left(any_server) == {}


@in_a_crawl()
async def test_what_is_written(parts, any_server):
    """A request is written as JSON only when the server is asked to claim its address."""
    written = []

    class Counted(scrapy.Request):
        def to_dict(self, **more):
            written.append(self.url)
            return super().to_dict(**more)

    await parts.fetched(await parts.begun(Counted(A)))
    await parts.begun(Counted(B))
    new = await parts.found(*(Counted(url, cb_kwargs={"depth": 2}) for url in (A, B, C) * 3))
    assert ([each.url for each in new], written) == ([C], [A, B, C])
    yield
    fields = {item: json.loads(claim.payload)["request"] for item, claim in left(any_server).items()}
    assert {item: (each["url"], each.get("cb_kwargs")) for item, each in fields.items()} == {
        B: (B, None),
        C: (C, {"depth": 2}),
    }


@pytest.mark.parametrize("why", ["callback", "meta", "tuple", "deep", "size"])
@in_a_crawl()
async def test_claimed_with_its_address_alone(parts, any_server, why, caplog):
    """A request that cannot be written as JSON is claimed, and another crawl gets its address; that is said once."""
    more = {
        "callback": {"callback": print},
        "meta": {"meta": {"object": object()}},
        "tuple": {"meta": {"tuple": (1, 2)}},
        "deep": {"meta": {"data": DEEP}},
        "size": {"meta": {"text": "x" * 70_000}},
    }[why]
    assert len(await parts.found(scrapy.Request(A, **more), scrapy.Request(B, **more))) == 2
    assert parts.stats.get_value("urifilter/url_only") == 2
    yield
    assert sum("cannot be kept whole" in each.getMessage() for each in caplog.records) == 1
    assert f"without {why if why == 'callback' else 'meta'} (" in caplog.text
    assert {item: json.loads(claim.payload) for item, claim in left(any_server).items()} == {
        url: {"spider": "spider", "request": {"url": url, "method": "GET", "encoding": "utf-8"}} for url in (A, B)
    }


class Kind(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "more",
    [
        {"callback": lambda _: None},
        {"errback": lambda failure: failure},
        {"meta": {"a": (1, 2)}, "callback": "about"},
        {"meta": {"a": Kind.ONE}},
        {"cb_kwargs": {"depth": Counter("aab")}, "callback": "about"},
        {"method": "POST", "body": b"x" * 70_000, "headers": {"X-Name": "a"}},
    ],
    ids=["callback", "errback", "tuple", "enum", "Counter", "body"],
)
@in_a_crawl()
async def test_a_retry_by_the_same_crawl(parts, any_server, more):
    """The process that has the whole request uses it, as the spider has made it, as often as it fails."""
    given = {name: getattr(parts.crawler.spider, value) if value == "about" else value for name, value in more.items()}
    found = await parts.begun(scrapy.Request(A, **given))
    for _ in range(2):
        found.meta["retry_times"] = 2  # as the middleware leaves it
        await parts.failed(found, OSError())
        assert await parts.idle()
        (found,) = parts.waiting()
        errback = given.pop("errback", None)
        assert errback is None or found.errback.errback is errback
        method, body = found.method, found.body
        assert (found.callback, found.meta, found.cb_kwargs) == (
            given.get("callback"),
            given.get("meta", {}),
            given.get("cb_kwargs", {}),
        )
        assert (method, body) == (given.get("method", "GET"), given.get("body", b""))
        assert found.headers.getlist("X-Name") == [b"a"] * ("headers" in given)
    await parts.fetched(found)
    assert parts.crawl.outcomes.whole == {}
    yield
    assert left(any_server) == {}


def test_kept_as_it_is_sent():
    """Another crawl sends what this one would have sent; what is left out is named."""
    spider = Spider()
    request = scrapy.Request(
        A, lambda _: None, "POST", {"X-Name": "a"}, b"body", {"b": "c"}, {"object": object()}, cb_kwargs={"n": 1}
    )
    text, lost = kept_of(request, spider)
    assert lost.startswith("callback, meta, cb_kwargs (")
    back = to_request(text, spider)
    assert (back.method, back.headers, back.body, back.cookies) == ("POST", request.headers, b"body", {"b": "c"})
    assert (back.callback, back.meta, back.cb_kwargs) == (None, {}, {})


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("what", ["headers", "body"])
def test_too_long_to_be_kept(method, what):
    """A request without its headers is one to the same address; one without its body is none, and is not kept."""
    long = {"headers": {"headers": {"X-Name": "x" * 70_000}}, "body": {"body": b"x" * 70_000}}[what]
    text, lost = kept_of(scrapy.Request(A, method=method, **long), Spider())
    if what == "body":
        assert (text, lost.partition(" (")[0]) == (None, "all of it")
    else:
        back = to_request(text, Spider())
        assert (back.method, back.url, lost.partition(" (")[0]) == (method, A, "headers")


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
    assert url_of(Claim("item", text)) == A
    assert to_request(text, Spider(name="other")) is None


@pytest.mark.parametrize("path", ["this.Request", "json.loads", "scrapy.Spider", "antigravity.Request", "x", 7])
def test_a_class_that_redis_names(path):
    """Nothing is imported, and no other class is called, because a payload says so."""
    text = json.dumps({"spider": "spider", "request": {"url": A, "_class": path}})
    before = set(sys.modules)
    with pytest.raises(ValueError, match="is no class of requests that is imported here"):
        to_request(text, Spider())
    assert set(sys.modules) == before


@pytest.mark.parametrize("how", ["fetched", "failed", "seen"])
@in_a_crawl()
async def test_a_redirect(parts, any_server, how):
    """The addresses of a redirect share an outcome; that which leads to a page of others was fetched."""
    if how == "seen":
        with UriFilter.open("news", redis=any_server.url) as news:
            news.insert(B)
    moved = await parts.found(redirected(await parts.begun(scrapy.Request(A)), B))
    if how == "fetched":
        assert (state(any_server, A), state(any_server, B)) == ("in flight", "in flight")
        await parts.fetched(*moved)
    elif how == "failed":
        await parts.failed(*moved, OSError())
    if how != "failed":
        assert (state(any_server, A), state(any_server, B)) == ("committed", "committed")
    assert parts.crawl.link.held == set()
    yield
    failures = {item: claim.failures for item, claim in left(any_server).items()}
    assert failures == ({A: 1, B: 1} if how == "failed" else {})


@pytest.mark.parametrize("of", ["middleware", "callback"])
@in_a_crawl()
async def test_a_retry_keeps_the_claim(parts, any_server, of):
    """The page is in flight until a retry is done, be it of Scrapy's middleware or of the page's own callback."""
    request = await parts.begun(scrapy.Request(A))
    retry = request.replace(dont_filter=True)
    if of == "callback":
        await parts.fetched(request, retry)
    else:
        parts.enqueue(retry)
    assert state(any_server, A) == "in flight"
    (retry,) = parts.waiting()
    await parts.fetched(retry)
    assert state(any_server, A) == "committed"


@in_a_crawl()
async def test_a_copy_in_an_inline_download(parts, any_server):
    """A callback that downloads its own page again by the engine has the page in flight until it has finished."""
    request = await parts.begun(scrapy.Request(A))
    response = parts.response(request)
    parts.tell(signals.request_reached_downloader, request=request.replace(dont_filter=True))
    assert parts.crawl.link.held == {A}
    await parts.yielded(response)
    assert state(any_server, A) == "committed"


@in_a_crawl()
async def test_copies_of_a_request(parts, any_server):
    """What a page's callback makes of its request is a request of its own, unless it is that once more."""
    request = await parts.begun(scrapy.Request(A))
    output = request.replace(url=B), request.replace(dont_filter=False), request.replace(url=C, dont_filter=True)
    await parts.fetched(request, *output)
    assert [state(any_server, each) for each in (A, B, C)] == ["committed", "in flight", "new"]
    assert {each.url for each in parts.waiting()} == {B, C}


@in_a_crawl()
async def test_a_duplicate_of_a_page_under_way(parts, any_server):
    """It is dropped while its page is in flight, and that page is committed as it ends."""
    request = await parts.begun(scrapy.Request(A))
    assert await parts.found(scrapy.Request(A)) == []
    await parts.fetched(request)
    assert state(any_server, A) == "committed"


@pytest.mark.parametrize("dont_filter", [False, True])
@in_a_crawl()
async def test_a_start_of_others(parts, any_server, dont_filter):
    """A start that another crawl has in flight is fetched, and what it redirects to; the other one ends it."""
    with another(any_server) as mine:
        mine.claim(A)
        (start,) = await parts.started(scrapy.Request(A, dont_filter=dont_filter))
        (moved,) = await parts.found(redirected(start, B))
        await parts.fetched(moved)
        assert state(any_server, A) == "in flight"
        assert parts.crawl.link.held == set()
        assert len(await parts.started(scrapy.Request(A, dont_filter=dont_filter))) == dont_filter


@in_a_crawl()
async def test_a_request_that_vanished(parts, any_server):
    """If a handler drops a retry, an idle spider does not keep the page: it has failed."""
    request = await parts.begun(scrapy.Request(A))
    parts.refuse(A)
    assert await parts.found(request.replace(dont_filter=True)) == []
    await parts.answered()
    assert parts.crawl.link.held == set()
    yield
    assert left(any_server)[A].failures == 1


@in_a_crawl()
async def test_a_spider_that_stops(parts, any_server):
    """All that it has in flight is offered at once, without a failure or lapse."""
    await parts.begun(scrapy.Request(A))
    await parts.queued(scrapy.Request(B))
    parts.enqueue(scrapy.Request(C))
    yield
    found = left(any_server)
    assert found.keys() == {A, B, C}
    assert {(claim.failures, claim.lapses) for claim in found.values()} == {(0, 0)}


@in_a_crawl()
async def test_a_look_as_the_spider_stops(parts, any_server):
    """Pages that an idle spider takes over as it is stopped are offered at once."""
    with another(any_server) as mine:
        mine.claim(A, payload=payload(A))
    assert parts.crawl.reclaiming.stays()
    await asyncio.sleep(0)
    yield
    assert left(any_server).keys() == {A}


@pytest.mark.parametrize(("share", "settings"), [(each, {"URIFILTER_SHARE": each}) for each in (1, 2)])
@in_a_crawl()
async def test_shared(parts, any_server, share, settings):
    """Pages beyond URIFILTER_SHARE are offered at once, with their requests; what nobody takes comes back."""
    more = {"callback": parts.crawler.spider.about, "cb_kwargs": {"depth": 1}, "method": "POST", "body": b"\xff"}
    links = [scrapy.Request(f"https://example.com/{n}", **more) for n in range(5)]
    items = [parts.item(each) for each in links]
    await parts.queued(scrapy.Request(A))
    await parts.fetched(parts.scheduler.next_request(), *links)
    assert state(any_server, A) == "committed"
    with another(any_server) as mine:
        found = {claim.item: claim for claim in mine.reclaim()}
        assert found.keys() == set(items[share:])
        assert {(claim.failures, claim.lapses) for claim in found.values()} == {(0, 0)}
        taken = to_request(found[items[4]].payload, parts.crawler.spider)
        assert {name: getattr(taken, name) for name in more} == more
        mine.commit(items[4:])
        mine.release(items[share:4])
    calls = parts.stats.get_value("urifilter/calls")
    await parts.queued(*(each.copy() for each in links))
    assert parts.stats.get_value("urifilter/calls") == calls
    fetched = []
    while len(fetched) < 4:
        begun = parts.waiting()
        assert len(begun) <= share
        for each in begun:
            fetched.append(parts.item(each))
            await parts.fetched(each)
        await asyncio.sleep(0.01)
    assert sorted(fetched) == sorted(items[:4])
    stats = parts.stats.get_stats()
    assert (stats["urifilter/shared"], stats["urifilter/reclaimed"]) == (5 - share, 4 - share)
    while await parts.idle():
        pass
    yield
    assert [state(any_server, item) for item in items] == ["committed"] * 5
    assert left(any_server) == {}


@pytest.mark.parametrize(
    ("what", "settings"),
    [
        *((each, {"URIFILTER_SHARE": 1}) for each in ("starts", "again", "address alone", "redirects")),
        ("no setting", {}),
    ],
)
@in_a_crawl()
async def test_not_shared(parts, what, settings):
    """A spider keeps what it must fetch itself, and what others could not fetch as it does."""
    if what == "redirects":
        begun = [await parts.begun(scrapy.Request(A)), *(await parts.found(scrapy.Request(B)))]
        found = await parts.found(*(redirected(each, f"{each.url}/moved") for each in begun))
    elif what == "starts":
        found = await parts.started(*map(scrapy.Request, (A, B)))
    else:
        how = {"again": {"meta": {"urifilter": "again"}}, "address alone": {"callback": lambda _: None}}
        found = await parts.found(*(scrapy.Request(each, **how.get(what, {})) for each in (A, B)))
    assert len(found) == 2
    assert parts.stats.get_value("urifilter/shared") is None
    if what == "no setting":  # a spider that runs low looks for nothing
        assert parts.crawl.reclaiming._task is None


@in_a_crawl(URIFILTER_SHARE=1)
async def test_shared_items_that_are_forgotten(parts, any_server, monkeypatch):
    """Of many shared items a crawl knows the last ones; a link to another one claims it and releases it once more."""
    monkeypatch.setattr("urifilter_redis.scrapy.outcomes.MOST_SHARED", 1)
    links = [scrapy.Request(each) for each in (A, B, C)]
    for each in (*links, links[1].copy()):
        await parts.queued(each)
    assert parts.stats.get_value("urifilter/shared") == 3
    yield
    assert left(any_server).keys() == {A, B, C}


@pytest.mark.parametrize("on_error", ["pause", "pass"])
def test_found_while_redis_is_away(make_server, on_error):
    """Links that nobody was asked about are claimed as the spider closes: the page that has them is committed then."""
    server = make_server(appendonly="yes", appendfsync="always")

    async def main():
        crawler = crawl(server, URIFILTER_ON_ERROR=on_error, URIFILTER_TIMEOUT=0.5)
        async with opened(crawler) as parts:
            response = parts.response(await parts.begun(scrapy.Request(A)))
            server.kill()
            page = asyncio.ensure_future(parts.yielded(response, scrapy.Request(C)))
            await parts.until(lambda: parts.crawl.link.away)
            assert parts.stats.get_value("urifilter/committed") is None
            crawler.engine.running = False
            server.start()
            await maybe_deferred_to_future(parts.scheduler.close("shutdown"))
            await page

    asyncio.run(main())
    assert (state(server, A), left(server).keys()) == ("committed", {C})


@pytest.mark.parametrize("how", ["exception", "half-way", "closes", "under way", "done"])
def test_fetched_unasked(make_server, how):
    """A page that is fetched unasked is claimed before its parent is committed, and comes back if it fails."""
    server = make_server(appendonly="yes", appendfsync="always")

    async def main():
        crawler = crawl(server, URIFILTER_ON_ERROR="pass", URIFILTER_TIMEOUT=0.5)
        async with opened(crawler) as parts:
            response = parts.response(await parts.begun(scrapy.Request(A)))
            server.kill()
            await parts.yielded(response, scrapy.Request(C, parts.crawler.spider.about))
            await parts.until(lambda: parts.crawl.link.away)
            (unasked,) = parts.waiting()
            if how in {"exception", "half-way"}:
                await parts.fails(unasked, how)
            elif how != "under way":
                await parts.fetched(unasked, *([CloseSpider()] * (how == "closes")))
            server.start()
            await parts.until(lambda: not parts.crawl.link.away)
            await parts.crawl.outcomes.settle()
            assert state(server, A) == "committed"
            assert parts.crawl.link.held == ({C} if how == "under way" else set())

    asyncio.run(main())
    found = left(server)
    failures = {item: claim.failures for item, claim in found.items()}
    assert failures == ({} if how == "done" else {C: int(how in {"exception", "half-way"})})
    assert how != "done" or state(server, C) == "committed"
    assert all(json.loads(claim.payload)["request"]["callback"] == "about" for claim in found.values())


@pytest.mark.quick
@pytest.mark.parametrize("answers", [[Answer.ASK] * 2, [KeyError], [Answer.ASK, KeyError]], ids=str)
@in_a_crawl()
async def test_links_that_cannot_be_told(parts, any_server, answers):
    """If the filter cannot be told of a page's links until the spider has closed, the page is not committed."""
    given = iter(answers)

    async def ask(items, _):
        answer = next(given)
        if answer is KeyError:
            raise KeyError
        return [answer for _ in items]

    request = await parts.begun(scrapy.Request(A))
    parts.crawl.link.ask = ask
    response, link = parts.response(request), scrapy.Request(C)
    assert [each async for each in parts.passed(response, link)] == [link]
    parts.enqueue(link)
    yield
    assert left(any_server).keys() == {A}
    assert list(given) == []


@in_a_crawl()
async def test_links_that_are_too_long_to_be_claimed(parts, any_server, caplog):
    """They are dropped, which is said once; their page is committed, other links are fetched, and so are starts."""
    long = [f"{B}?{n}={'x' * 70_000}" for n in range(2)]
    await parts.fetched(await parts.begun(scrapy.Request(A)), *map(scrapy.Request, [long[0], C, long[1]]))
    assert [each.url for each in parts.waiting()] == [C]
    assert (state(any_server, A), state(any_server, C)) == ("committed", "in flight")
    assert caplog.text.count("cannot be claimed") == parts.stats.get_value("urifilter/too_long") / 2 == 1
    assert len(await parts.started(scrapy.Request(long[0]))) == 1
    assert parts.crawler.engine.reason is None
    yield
    assert left(any_server).keys() == {C}


@pytest.mark.parametrize("error", [OSError, ValueError])
@pytest.mark.parametrize("dont_filter", [False, True])
@in_a_crawl()
async def test_a_queue_that_raises(parts, any_server, dont_filter, error):
    """What it does not take is offered again, as is all that was asked about with it, and the page that led to it."""
    response = parts.response(await parts.begun(scrapy.Request(A)))
    parts.scheduler._inner.enqueue_request = Mock(side_effect=error)
    with contextlib.suppress(error):
        await parts.yielded(response, *(scrapy.Request(each, dont_filter=dont_filter) for each in (B, C)))
    await parts.answered()
    assert parts.crawler.engine.reason == (None if error is ValueError and dont_filter else "urifilter_error")
    yield
    failures = {item: claim.failures for item, claim in left(any_server).items()}
    refused = int(error is ValueError)
    assert failures == ({A: refused} if dont_filter else {A: refused, B: refused, C: 0})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"URIFILTER_KEY": lambda request: {A: A, C: C}[request.url]}, None),
        ({"URIFILTER_KEY": lambda request: {A: A, C: C}.get(request.url)}, "urifilter_error"),
    ],
)
@in_a_crawl()
async def test_a_link_without_an_item(parts, any_server, settings, reason):
    """A page fails that has a link of which URIFILTER_KEY makes no item; if it returns none, the spider closes, too."""
    response, links = parts.response(await parts.begun(scrapy.Request(A))), [scrapy.Request(each) for each in (B, C)]
    assert [each async for each in parts.passed(response, *links)] == links
    with pytest.raises((KeyError, TypeError)):
        parts.enqueue(links[0])
    await parts.queued(links[1])
    assert parts.crawler.engine.reason == reason
    yield
    found = left(any_server)
    assert {item: claim.failures for item, claim in found.items()} == {A: 1, C: 0}


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
        ({"URIFILTER_SHARE": 0}, "URIFILTER_SHARE is a whole number above 0"),
        ({"URIFILTER_SHARE": -1}, "URIFILTER_SHARE is a whole number above 0"),
        ({"URIFILTER_SHARE": "some"}, "URIFILTER_SHARE is a whole number"),
        ({"URIFILTER_SHARE": 5, "URIFILTER_CLAIM": False}, "URIFILTER_SHARE needs URIFILTER_CLAIM"),
    ],
)
def test_impossible_settings(any_server, settings, said):
    """They are refused before the crawl begins."""
    with pytest.raises(ValueError, match=said):
        UriSpiderMiddleware.from_crawler(crawl(any_server, **settings))
