"""The parts for Scrapy: scheduler, spider middleware and settings, with a small engine around them."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from unittest.mock import Mock

import pytest

# before 2.15, Scrapy runs coroutines in a reactor only
scrapy = pytest.importorskip("scrapy", "2.15", reason="Scrapy 2.15 is not installed: pip install '.[scrapy]'")

from scrapy import signals  # noqa: E402
from scrapy.exceptions import DropItem  # noqa: E402
from scrapy.settings import Settings  # noqa: E402
from scrapy.spidermiddlewares.httperror import HttpError  # noqa: E402
from scrapy.utils.defer import maybe_deferred_to_future  # noqa: E402
from scrapy.utils.test import get_crawler  # noqa: E402
from support.proxy import Fault, Proxy, never  # noqa: E402
from support.scrapy_parts import A, B, C, crawler_of, in_a_crawl, kept, opened, redirected, run, seen  # noqa: E402
from twisted.python.failure import Failure  # noqa: E402

from urifilter_redis import ConfigMismatch, Timeouts, UriFilter  # noqa: E402
from urifilter_redis.scrapy import UriDupeFilter, UriFilterAddon, UriSpiderMiddleware  # noqa: E402
from urifilter_redis.scrapy.crawl import MOST_HELD, Crawl, misplaced  # noqa: E402
from urifilter_redis.scrapy.options import Options  # noqa: E402
from urifilter_redis.scrapy.scheduler import MOST  # noqa: E402


@pytest.fixture
def own_server(make_server):
    """A server of the test's own, which has all that it had when it is started again."""
    return make_server(appendonly="yes", appendfsync="always")


@pytest.fixture
def proxy(any_server):
    """A way to the server that may fail."""
    with Proxy(any_server.port) as proxy:
        yield proxy


def urls(requests):
    return [each.url for each in requests]


@in_a_crawl()
async def test_a_request_is_seen_once_it_was_asked_about(parts):
    """As by Scrapy's filter, by method, canonical address and body; all that is enqueued at once is one call."""
    requests = [scrapy.Request(A), scrapy.Request(B), scrapy.Request(f"{A}#part"), scrapy.Request(A, method="POST")]
    new = await parts.found(*requests, *(each.copy() for each in requests))
    assert sorted((each.url, each.method) for each in new) == [(A, "GET"), (A, "POST"), (B, "GET")]
    assert await parts.found(scrapy.Request(A)) == []
    stats = parts.stats.get_stats()
    assert (stats["urifilter/calls"], stats["urifilter/asked"], stats["dupefilter/filtered"]) == (1, 8, 6)


@in_a_crawl()
async def test_it_is_shared(parts, any_server):
    """Two crawls that are open at once have one filter, and it is there after both."""
    async with opened(crawler_of(any_server)) as other:
        await parts.fetched(await parts.begun(scrapy.Request(A)))
        assert await other.found(scrapy.Request(A)) == []
        await other.fetched(await other.begun(scrapy.Request(B)))
    yield
    async with opened(crawler_of(any_server)) as later:
        assert await later.found(scrapy.Request(A), scrapy.Request(B)) == []


@in_a_crawl()
async def test_calls(parts):
    """One call at a time asks about 500 requests at most; meanwhile others gather."""
    parts.enqueue(*(scrapy.Request(f"{A}/{number}") for number in range(2 * MOST + 1)))
    assert parts.scheduler.has_pending_requests()
    assert parts.waiting() == []
    await parts.answered()
    assert len(parts.waiting()) == 2 * MOST + 1
    assert not parts.scheduler.has_pending_requests()
    assert parts.stats.get_value("urifilter/calls") == 3


@pytest.mark.parametrize("own", ["scrapy.core.scheduler.Scheduler", None])
def test_the_addon(own):
    """It puts the scheduler around the project's, whose dupefilter then drops nothing."""
    settings = Settings({} if own is None else {"SCHEDULER": own})
    for _ in range(2):
        UriFilterAddon().update_settings(settings)
    assert settings["URIFILTER_SCHEDULER"] == "scrapy.core.scheduler.Scheduler"
    assert settings["SCHEDULER"].__name__ == "UriFilterScheduler"
    assert settings["DUPEFILTER_CLASS"] is UriDupeFilter
    assert settings["SPIDER_MIDDLEWARES"][UriSpiderMiddleware] == 10
    dupefilter = UriDupeFilter.from_crawler(get_crawler())
    assert [dupefilter.request_seen(scrapy.Request(A)) for _ in range(2)] == [False, False]


@pytest.mark.parametrize(("settings", "count"), [({}, 1), ({"DUPEFILTER_DEBUG": True}, 3)])
@in_a_crawl()
async def test_duplicates(parts, caplog, settings, count):
    """They are counted and signalled; the first is logged, and all with DUPEFILTER_DEBUG."""
    dropped = []
    parts.crawler.signals.connect(lambda request: dropped.append(request.url), signals.request_dropped, weak=False)
    with caplog.at_level(logging.DEBUG):
        assert len(await parts.found(*(scrapy.Request(A, headers={"Referer": B}) for _ in range(4)))) == 1
    assert parts.stats.get_value("dupefilter/filtered") == 3
    assert dropped == [A] * 3
    told = [each.getMessage() for each in caplog.records if "Filtered duplicate request" in each.getMessage()]
    assert len(told) == count
    assert f"<GET {A}>" in told[0]


@pytest.mark.parametrize("settings", [{}, {"URIFILTER_CLEAR": True}], ids=["", "set"])
@in_a_crawl()
async def test_clear(parts, caplog, settings):
    """As scrapy-redis empties its queue, what is in it is new again; with URIFILTER_CLEAR the filter is emptied."""
    await parts.fetched(await parts.begun(scrapy.Request(A)))
    await parts.queued(scrapy.Request(B))
    UriDupeFilter.from_spider(parts.crawler.spider).clear()
    yield
    assert ("set URIFILTER_CLEAR to empty it" in caplog.text) is not bool(settings)
    assert parts.seen(A, B) == [not settings, False]


@in_a_crawl()
async def test_meta_is_the_spiders(parts):
    """What is known about a request is not in its meta while it is downloaded: links may have a copy of it."""
    new = await parts.begun(scrapy.Request(A, meta={"mine": 1}))
    assert new.meta == {"mine": 1}
    await parts.fetched(new, scrapy.Request(B, meta=new.meta), scrapy.Request(A, meta=new.meta))
    assert urls(parts.waiting()) == [B]


@in_a_crawl()
async def test_an_errback_is_the_spiders(parts):
    """The spider's own errback is called, its output goes on, and a scheduler on disk finds it in the request."""

    def failed(failure):
        return [failure.value]

    request = await parts.begun(scrapy.Request(A, errback=failed))
    retry = request.replace(dont_filter=True)
    parts.enqueue(retry)
    assert retry.errback is failed
    (retry,) = parts.waiting()
    error = OSError()
    assert retry.errback(Failure(error)) == [error]


@in_a_crawl()
async def test_a_page_that_another_middleware_refuses(parts):
    """Its callback never sees it, whatever an errback does: it is new again. A status is no such refusal."""
    requests = [await parts.begun(scrapy.Request(each, errback=lambda _: [])) for each in (A, B)]
    refusals = ValueError("a captcha, and no page"), HttpError(None, "404")
    for request, refusal in zip(requests, refusals, strict=True):
        response = parts.response(request)
        await parts.yielded(response, *request.errback(Failure(refusal)))
    yield
    assert parts.seen(A, B) == [False, True]


def test_the_url_of_a_request(any_server):
    """With "url" the item is the canonical address; the method and the body tell other requests from it."""
    key = Options.of(crawler_of(any_server, URIFILTER_KEY="url")).key
    assert key(scrapy.Request(f"{A}?b=1&a=2#part")) == key(scrapy.Request(f"{A}?a=2&b=1")) == f"{A}?a=2&b=1"
    others = [scrapy.Request(A, method="POST", body=body) for body in ("", "one", "two")]
    others += [scrapy.Request(A, method="HEAD"), scrapy.Request(A, body="one"), scrapy.Request(A)]
    assert len({key(each) for each in others}) == 6
    assert key(others[0]) == f"POST {A}"


def test_an_imported_filter_that_forgets(any_server):
    """Its capacity is the import's; what the settings say must be so, and the key is that of its items."""
    made = {"capacity": 12_000, "retention": "rolling", "slices": 11, "period": "3d", "items": "url"}
    UriFilter.create("imported", redis=any_server.url, **made).close()
    here = {"URIFILTER_NAME": "imported", "URIFILTER_CAPACITY": None, "URIFILTER_KEY": "url"}

    async def ask(**settings):
        async with opened(crawler_of(any_server, **here | settings)) as parts:
            return urls(await parts.found(scrapy.Request(A)))

    assert asyncio.run(ask(URIFILTER_AGAIN_AFTER="30d")) == [A]
    for wrong in ({"URIFILTER_AGAIN_AFTER": "7d"}, {"URIFILTER_KEY": "fingerprint"}):
        with pytest.raises(ConfigMismatch):
            asyncio.run(ask(**wrong))


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
        UriSpiderMiddleware.from_crawler(crawler_of(any_server, **settings))


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
    with pytest.raises(ValueError, match=f"^{said}: "):
        run(any_server, None, **settings)


@pytest.mark.parametrize("key", ["fingerprint", "url", "test_scrapy_parts.without_query"])
def test_key(any_server, key, monkeypatch):
    """The item is the fingerprint's hex text, the address, or what a function makes of the request."""
    if "." in key:
        monkeypatch.setattr("urifilter_redis.scrapy.options.load_object", lambda _: without_query)
    request = scrapy.Request(f"{A}?b=1")

    async def test(parts):
        await parts.fetched(await parts.begun(request))
        return parts.crawler.request_fingerprinter.fingerprint(request).hex()

    items = [run(any_server, test, URIFILTER_KEY=key), f"{A}?b=1", A]
    assert seen(any_server, *items) == [
        each == key for each in ("fingerprint", "url", "test_scrapy_parts.without_query")
    ]


@pytest.mark.parametrize("item", [None, 5, ("a",)])
def test_a_key_that_is_no_item(any_server, item):
    """The spider closes, and says which setting is wrong: all pages but one would be seen otherwise."""

    async def test(parts):
        with pytest.raises(
            TypeError, match=f"URIFILTER_KEY is a function .* and not {re.escape(repr(item))}, as of <GET"
        ):
            parts.enqueue(scrapy.Request(A))
        await asyncio.sleep(0)
        assert parts.crawler.engine.reason == "urifilter_error"

    run(any_server, test, URIFILTER_KEY=lambda _: item)


def without_query(request):
    return request.url.partition("?")[0]


@pytest.mark.parametrize("made", [{}, {"URIFILTER_CAPACITY": None}], ids=["settings", "as it is"])
def test_a_filter_of_other_items(any_server, made):
    """It remembers the key of the crawl that has made it, and refuses another; one that was made by hand takes any."""

    async def test(parts): ...

    run(any_server, test, URIFILTER_KEY="url", **made)
    for other in ("fingerprint", without_query):
        with pytest.raises(ConfigMismatch, match="that is 'url', and not '(finger|function)"):
            run(any_server, test, URIFILTER_KEY=other, **made)
    run(any_server, test, URIFILTER_KEY="url", **made)
    UriFilter.create("other", redis=any_server.url, capacity=10_000).close()
    for any_key in ("fingerprint", "url"):
        run(any_server, test, URIFILTER_KEY=any_key, URIFILTER_NAME="other", **made)


@pytest.mark.parametrize("exists", [False, True])
def test_normalize_has_no_effect_on_fingerprints(any_server, exists):
    """It is refused with the default key, of the settings and of a filter that is there; with "url" it works."""

    async def test(parts):
        return len(await parts.found(*(scrapy.Request(f"{scheme}://example.com/a") for scheme in ("https", "http"))))

    made = {"URIFILTER_NORMALIZE": "loose"}
    if exists:
        UriFilter.create("news", redis=any_server.url, capacity=10_000, normalize="loose").close()
        made = {"URIFILTER_CAPACITY": None}
    with pytest.raises(ConfigMismatch if exists else ValueError, match="no effect on fingerprints"):
        run(any_server, test, **made)
    assert run(any_server, test, URIFILTER_KEY="url", **made) == 1


def test_other_settings_than_the_filters(any_server):
    """Settings that a filter does not have are refused; without any, the filter is taken as it is."""
    UriFilter.create("news", redis=any_server.url, capacity=10_000, layout="classic").close()
    with pytest.raises(ConfigMismatch, match="layout"):
        run(any_server, None, URIFILTER_LAYOUT="blocked")

    async def test(parts):
        return len(await parts.found(scrapy.Request(A)))

    assert run(any_server, test, URIFILTER_CAPACITY=None) == 1


@in_a_crawl()
async def test_dropped_before_the_scheduler(parts):
    """Nobody is asked about a request that a signal's handler drops."""
    parts.refuse(B)
    assert urls(await parts.found(scrapy.Request(A), scrapy.Request(B))) == [A]
    yield
    assert parts.seen(B) == [False]


@pytest.mark.parametrize("late", [False, True])
def test_a_queue_on_disk_keeps_what_waits(any_server, tmp_path, late):
    """With JOBDIR the next crawl fetches it, and the addresses that led to it end with it."""

    async def test(parts):
        parts.enqueue(redirected(await parts.begun(scrapy.Request(A)), B))
        if not late:
            await parts.answered()
        return parts

    async def then(parts):
        (request,) = parts.waiting()
        assert request.url == B
        await parts.failed(request, OSError())

    parts = run(any_server, test, JOBDIR=str(tmp_path))
    assert parts.seen(A, B) == [True, True]
    run(any_server, then, JOBDIR=str(tmp_path))
    assert parts.seen(A, B) == [False, False]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_queue_that_raises(any_server, tmp_path, on_disk):
    """What it does not take, and what was asked about with it, is kept; with JOBDIR it is new, as is its page."""

    async def test(parts):
        response = parts.response(await parts.begun(scrapy.Request(A)))
        parts.scheduler._inner.enqueue_request = Mock(side_effect=OSError(28, "No space left on device"))
        await parts.yielded(response, scrapy.Request(B), scrapy.Request(C))
        return parts

    parts = run(any_server, test, JOBDIR=str(tmp_path) if on_disk else None)
    assert kept(any_server) == set([] if on_disk else parts.items(B, C))
    assert parts.seen(A, B, C) == [not on_disk] * 3


@in_a_crawl("own_server")
async def test_closed_as_it_asks(parts, own_server):
    """Items that the filter inserts as the spider closes are kept for the next crawl."""
    await parts.fetched(await parts.begun(scrapy.Request(A)))  # the server has the script from here
    own_server.suspend()
    parts.enqueue(scrapy.Request(B))
    await asyncio.sleep(0.1)  # it is sent
    closing = asyncio.ensure_future(maybe_deferred_to_future(parts.scheduler.close("finished")))
    await asyncio.sleep(0)
    own_server.resume()
    await closing
    yield
    fetched, waiting = parts.items(A, B)
    assert kept(own_server) == {waiting} != {fetched}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"URIFILTER_CLAIM": True}], ids=["", "claims"])
@in_a_crawl("own_server", URIFILTER_TIMEOUT=0.5)
async def test_closed_while_redis_hangs(parts, own_server, settings, caplog):
    """The spider closes although no call is answered: one last call waits for its timeout, and one line says so."""
    calls, note = [], parts.crawl.link._note
    await parts.begun(scrapy.Request(A))
    await parts.queued(scrapy.Request(B), scrapy.Request(C))
    own_server.suspend()
    parts.crawl.link._note = lambda error, since: (calls.append(error), note(error, since))
    yield
    own_server.resume()
    assert len(calls) == 1
    told = [each.getMessage() for each in caplog.records if each.levelname in {"WARNING", "ERROR"}]
    assert [each for each in told if "away" in each or "lease" in each] == [told[-1]]
    assert "because Redis is away" in told[-1]


@pytest.mark.slow
@in_a_crawl("own_server", URIFILTER_TIMEOUT=2)
async def test_seconds_without_redis(parts, own_server):
    """They count from the beginning of the call that failed, which waited for its timeout."""
    await parts.begun(scrapy.Request(A))
    own_server.suspend()
    parts.enqueue(scrapy.Request(B))
    await parts.until(lambda: parts.crawl.link.away)
    own_server.resume()
    await parts.until(lambda: not parts.crawl.link.away)
    assert parts.stats.get_value("urifilter/seconds_away") >= 2


@in_a_crawl()
async def test_a_start_that_goes_on_as_the_spider_closes(parts):
    """Requests that reach the scheduler too late to be fetched stay new."""
    await maybe_deferred_to_future(parts.scheduler.close("finished"))
    assert await parts.found(scrapy.Request(A)) == []
    yield
    assert parts.seen(A) == [False]


@pytest.mark.slow
@in_a_crawl("proxy", URIFILTER_TIMEOUT=0.5)
async def test_an_answer_that_is_lost(parts, proxy):
    """It is asked for again, and the request is fetched once."""
    await parts.fetched(await parts.begun(scrapy.Request(A)))
    proxy.plan = lambda _: Fault.CUT_AFTER
    parts.enqueue(scrapy.Request(B))
    await parts.until(lambda: parts.stats.get_value("urifilter/errors"))
    proxy.plan = never
    await parts.answered()
    assert urls(parts.waiting()) == [B]


@in_a_crawl("proxy", URIFILTER_TIMEOUT=0.3, URIFILTER_ON_ERROR="pass")
async def test_a_page_whose_answer_was_lost_is_recorded(parts, any_server, proxy):
    """The question may not have reached the filter: the page is seen once it was fetched."""
    await parts.fetched(await parts.begun(scrapy.Request(A)))
    proxy.plan = lambda _: Fault.CUT_BEFORE
    request = await parts.begun(scrapy.Request(B))
    item = parts.item(request)
    assert (item in parts.crawl.link.unsure, seen(any_server, item)) == (True, [False])
    proxy.plan = never
    await parts.until(lambda: not parts.crawl.link.away)
    await parts.fetched(request)
    yield
    assert seen(any_server, item) == [True]


@pytest.mark.parametrize("how", ["exception", "status", "callback", "pipeline", "vanished", "half-way"])
@in_a_crawl()
async def test_a_failed_page_is_new_again(parts, how):
    """It is not asked about again in this crawl; after it, it and all that redirected to it are new, and no others."""
    first, fetched = sorted(await parts.found(scrapy.Request(A), scrapy.Request("https://example.com/z")), key=str)
    await parts.fetched(fetched, status=404)
    (middle,) = await parts.found(redirected(first, B))
    (last,) = await parts.found(redirected(middle, C))
    (retry,) = await parts.found(last.replace(dont_filter=True))
    if how != "vanished":
        await parts.fails(retry, how, {"an": "item"})
    assert not await parts.idle()  # by then a request that vanished has failed
    every = [A, B, C, fetched.url]
    assert await parts.found(*map(scrapy.Request, every)) == []
    yield
    assert parts.seen(*every) == [False, False, False, True]


@pytest.mark.parametrize("signal", [signals.item_scraped, signals.item_dropped])
@in_a_crawl()
async def test_items_that_are_handled(parts, signal):
    """An item that is dropped is no failure of its page."""
    response = parts.response(await parts.begun(scrapy.Request(A)))
    await parts.item_ends(response, signal, exception=DropItem(""))
    yield
    assert parts.seen(A) == [True]


@pytest.mark.parametrize("how", ["seen", "off the site"])
@in_a_crawl()
async def test_a_redirect_that_ends(parts, how):
    """The address that redirected there was fetched, and stays seen."""
    parts.refuse(C)
    one, two = sorted(await parts.found(scrapy.Request(A), scrapy.Request(B)), key=str)
    await parts.fetched(two)
    assert await parts.found(redirected(one, {"seen": B, "off the site": C}[how])) == []
    assert not await parts.idle()
    assert parts.crawl.outcomes.failed == {}
    yield
    assert parts.seen(A, B, C) == [True, True, False]


#: Chains of redirects that come to one item more than once, with the settings that make one of them.
CHAINS = {
    "itself": ([A, A], {}),
    "there and back": ([A, B, A], {}),
    "another order": ([f"{A}?x=1&y=2", f"{A}?y=2&x=1"], {}),
    "loose": (
        ["http://example.com/d/index.html", "https://example.com/d/", "https://www.example.com/d"],
        {"URIFILTER_KEY": "url", "URIFILTER_NORMALIZE": "loose"},
    ),
    "sorted": ([f"{A}?utm_source=x", B, A, B], {"URIFILTER_KEY": "url", "URIFILTER_NORMALIZE": "sorted"}),
}


@pytest.mark.parametrize("of", ["a link", "a start", "a start with dont_filter", "a start that was seen"])
@pytest.mark.parametrize(("chain", "settings"), CHAINS.values(), ids=CHAINS)
@in_a_crawl()
async def test_a_redirect_to_the_same_item(parts, chain, settings, of):
    """What a download has itself is not seen for its redirects: the page is fetched, and all addresses stay seen."""
    first = scrapy.Request(chain[0], dont_filter="dont_filter" in of)
    if "seen" in of:
        await parts.fetched(await parts.begun(first.replace()))
    (request,) = await (parts.found(first) if of == "a link" else parts.started(first))
    for each in chain[1:]:
        (request,) = await parts.found(redirected(request, each))
    await parts.fetched(request)
    assert parts.crawl.outcomes.failed == {}
    yield
    assert all(parts.seen(*chain))


@in_a_crawl()
async def test_a_redirect_in_a_circle(parts):
    """It has failed after three visits of an address, and all of them are new for the next crawl."""
    (request,), visits = await parts.found(scrapy.Request(A)), [A]
    while found := await parts.found(redirected(request, B if request.url == A else A)):
        (request,) = found
        visits.append(request.url)
    assert visits == [A, B] * 3
    assert await parts.found(scrapy.Request(A), scrapy.Request(B)) == []
    yield
    assert parts.seen(A, B) == [False, False]


@pytest.mark.parametrize("is_seen", [False, True])
@in_a_crawl()
async def test_a_redirect_of_a_retry(parts, is_seen):
    """It is asked about and recorded: dont_filter is the retry's, and not the spider's."""
    if is_seen:
        await parts.fetched(await parts.begun(scrapy.Request(B)))
    (retry,) = await parts.found((await parts.begun(scrapy.Request(A))).replace(dont_filter=True))
    found = await parts.found(redirected(retry, B))
    assert urls(found) == ([] if is_seen else [B])
    for each in found:
        await parts.fetched(each)
    yield
    assert parts.seen(A, B) == [True, True]


@pytest.mark.parametrize("dont_filter", [False, True])
@in_a_crawl()
async def test_a_start_twice(parts, dont_filter):
    """As with Scrapy's own filter: with ``dont_filter`` it is fetched each time, even if it failed, else once."""
    one = scrapy.Request(A, dont_filter=dont_filter)
    found = await parts.started(one, one.replace())
    assert len(found) == 1 + dont_filter
    for each in found:
        await parts.failed(each, OSError())
    assert len(await parts.started(one.replace())) == dont_filter


@in_a_crawl()
async def test_a_redirect_off_the_site_ends_the_crawl(parts):
    """The engine may find out in the same turn that nothing is left to do: the address is fetched all the same."""
    parts.refuse(C)
    parts.enqueue(redirected(await parts.begun(scrapy.Request(A)), C))
    assert not await parts.idle()
    yield
    assert parts.seen(A, C) == [True, False]


@pytest.mark.slow
@in_a_crawl("own_server", URIFILTER_TIMEOUT=0.5)
async def test_redis_is_away_pause(parts, own_server):
    """Requests wait, and the spider stays open, until Redis is back."""
    await parts.fetched(await parts.begun(scrapy.Request(A)))
    own_server.kill()
    parts.enqueue(*map(scrapy.Request, (A, B, B)))
    await parts.until(lambda: parts.crawl.link.away)
    parts.enqueue(scrapy.Request(C))
    assert parts.scheduler.has_pending_requests()
    assert parts.waiting() == []
    own_server.start()
    await parts.answered()
    assert sorted(urls(parts.waiting())) == [B, C]


@pytest.mark.slow
@in_a_crawl("own_server", URIFILTER_TIMEOUT=0.5, URIFILTER_CAPACITY=100_000)
async def test_no_more_pages_are_read(parts, own_server):
    """While 10,000 requests wait for Redis, other pages are not read; then all of them are asked about."""
    first = parts.response(await parts.begun(scrapy.Request(A)))
    own_server.kill()
    parts.enqueue(*(scrapy.Request(f"{A}/{number}") for number in range(MOST_HELD)))
    page = asyncio.ensure_future(parts.yielded(first, scrapy.Request(B)))
    start = asyncio.ensure_future(parts.started(scrapy.Request(C)))
    await parts.until(lambda: parts.crawl.link.away)
    await asyncio.sleep(0.1)
    assert parts.scheduler.held == MOST_HELD
    own_server.start()
    await asyncio.gather(page, start)
    assert parts.stats.get_value("urifilter/new") == MOST_HELD + 3


@pytest.mark.slow
@in_a_crawl("own_server", URIFILTER_ON_ERROR="pass", URIFILTER_TIMEOUT=0.3)
async def test_redis_is_away_pass(parts, own_server):
    """With "pass" requests go on unasked, once each; what was fetched is recorded, and what waits is asked about."""
    own_server.kill()
    good, bad = sorted(await parts.found(*map(scrapy.Request, (A, A, B))), key=str)
    await parts.fetched(good)
    await parts.failed(bad, OSError())
    assert await parts.found(scrapy.Request(A), scrapy.Request(B)) == []
    await parts.queued(scrapy.Request(C))
    assert parts.stats.get_value("urifilter/unasked") == 3
    own_server.start()
    await parts.until(lambda: not parts.crawl.link.away)
    with UriFilter.open("news", redis=own_server.url) as news:
        news.insert(*parts.items(C))
    assert parts.waiting() == []
    await parts.answered()
    assert parts.waiting() == []
    yield
    assert parts.seen(A, B, C) == [True, False, True]


def test_the_place_of_the_middleware():
    """A crawl warns of a spider middleware that is nearer to the engine, and drops what ours has noted."""
    assert misplaced({"UriSpiderMiddleware": 10, "DepthMiddleware": 900}) is None
    assert misplaced({"UriSpiderMiddleware": 900, "HttpErrorMiddleware": 50}) == "HttpErrorMiddleware"


@pytest.mark.slow
def test_nothing_is_left_of_a_crawl(any_server):
    """A process may run any number of crawls."""

    async def test(parts):
        await parts.fetched(await parts.begun(scrapy.Request(A)))

    run(any_server, test)
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Crawl)] == []
