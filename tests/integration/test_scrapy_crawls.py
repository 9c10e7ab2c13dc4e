"""Crawls by Scrapy in processes of their own, over real sites, counted against the exact set of pages."""

from __future__ import annotations

import importlib.util
import itertools
import json
import time

import pytest
from support.scrapy_crawl import Crawl, check, check_committed, ours, run_in_project
from support.servers import wait_until
from support.site import PYTHON_DOC, Served

from urifilter_redis import UriFilter

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("scrapy") is None, reason="Scrapy is not installed: pip install '.[scrapy]'"
)
needs_scrapy_redis = pytest.mark.skipif(
    importlib.util.find_spec("scrapy_redis") is None, reason="scrapy-redis is not installed"
)

#: Of what a crawl logs when Redis does not answer.
AWAY = "(URIFILTER_ON_ERROR)"

IN_REDIS = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}


def paths(site, status: int) -> set[str]:
    return {page.path for page in site.pages.values() if page.status == status}


def wait_for(site, count: int) -> None:
    """Wait until so many pages were fetched."""
    wait_until(lambda: len(set(site.fetched())) >= count, "nothing is fetched", patience=60)


@pytest.mark.slow
@pytest.mark.parametrize("claim", ["0", "1"])
def test_the_example(any_server, tmp_path, claim):
    """The example's spider fetches each page of a site once, with claims and without."""
    with Served(count=40) as site:
        out = tmp_path / "pages.jsonl"
        command = ["-m", "scrapy", "crawl", "site", "-a", f"url={site.url}", "-O", out]
        given = (
            "CONCURRENT_REQUESTS_PER_DOMAIN=16",
            "DOWNLOAD_DELAY=0",
            "URIFILTER_CLAIM_DELAY=0",
            "URIFILTER_LEASE=5",
        )
        run_in_project(any_server, *command, *(word for each in given for word in ("-s", each)), CLAIM=claim)
        check(site)
        titles = {json.loads(line)["title"] for line in out.read_text().splitlines()}
        assert titles == paths(site, 200)
    with UriFilter.open("crawl_scrapy", redis=any_server.url) as pages:
        assert (pages.config.retention, pages.config.period, pages.config.slices) == ("rolling", "3d", 11)


@pytest.mark.slow
def test_two_processes_share_a_site(any_server, tmp_path):
    """Two crawls that begin at different pages fetch each page once together, and miss none."""
    with Served(delay=0.002) as site:
        starts = [site.url], [site.at("127.0.0.1", path) for path in sorted(paths(site, 200))[:20]]
        more = {"domains": ["127.0.0.1"], "together": (str(tmp_path), 2)}
        crawls = [Crawl(*urls, **more, **ours(any_server)) for urls in starts]
        stats = [each.stats() for each in crawls]
        check(site, *itertools.chain(*starts))
        assert all(each["urifilter/asked"] for each in stats)
        assert sum(each["urifilter/calls"] for each in stats) < len(site.pages) + 200


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON_DOC.is_dir(), reason="Debian's python3.11-doc is not installed")
def test_a_real_site(any_server):
    """Two crawls of Python's documentation fetch each page once."""
    with Served(PYTHON_DOC) as site:
        starts = site.url, site.at("127.0.0.1", "/library/index.html")
        crawls = [Crawl(url, domains=["127.0.0.1"], **ours(any_server)) for url in starts]
        for each in crawls:
            each.stats()
        check(site, *starts)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "dropping",
    [
        {"SPIDER_MIDDLEWARES": {"Drop": 1}},
        {"SPIDER_MIDDLEWARES": {"Drop": 950}},
        {"EXTENSIONS": {"Refuse": 1}},
        {"DEPTH_LIMIT": 3},
    ],
    ids=["nearer to the engine", "before the middleware", "a signal's handler", "depth"],
)
def test_dropped_before_the_scheduler(any_server, dropping):
    """Requests that other parts drop stay new: the next crawl fetches their pages, and only those."""
    with Served(count=300) as site:
        Crawl(site.url, domains=["127.0.0.1"], **ours(any_server, **dropping)).stats()
        before = site.fetched()
        first = set(before)
        missed = site.pages.keys() - first
        assert missed
        urls = [site.at("127.0.0.1", each) for each in sorted(site.pages)]
        Crawl(*urls, spider="Finds", **ours(any_server)).stats()
        again = site.fetched()[len(before) :]
        assert "/part3/3.html" in missed or "DEPTH_LIMIT" in dropping
        failed = {page.path for page in site.pages.values() if page.has_failed}
        assert set(again) - failed == missed - failed


@pytest.mark.slow
def test_failed_pages_are_new_again(any_server):
    """What failed, and every address that redirected to it, is fetched by the next crawl, and nothing else."""
    with Served(count=250) as site:
        stats = Crawl(site.url, domains=["127.0.0.1"], **ours(any_server)).stats()
        assert stats["urifilter/given_back"] >= len(paths(site, 500) | paths(site, 0))
        circles = {page.path for page in site.pages.values() if page.in_circle}
        failed, port = paths(site, 500) | paths(site, 0), site.port
    with Served(count=250, mended=True, port=port) as site:
        urls = [site.at("127.0.0.1", each) for each in sorted(site.pages)]
        Crawl(*urls, spider="Finds", **ours(any_server)).stats()
        assert set(site.fetched()) - circles == failed  # a circle has two ends if both were found at once


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {}),
        pytest.param(IN_REDIS, {}, marks=needs_scrapy_redis),
        pytest.param(
            IN_REDIS | {"SCHEDULER_PERSIST": True},
            IN_REDIS | {"SCHEDULER_FLUSH_ON_START": True},
            marks=needs_scrapy_redis,
        ),
    ],
    ids=["in memory", "in Redis, deleted at the end", "in Redis, deleted at the start"],
)
def test_a_spider_that_closes(any_server, first, then):
    """Pages that were found and not fetched, as the queue ended, are fetched by the next spider."""
    with Served(count=250, delay=0.01) as site:
        first, then = (each | ({"REDIS_URL": any_server.url} if each else {}) for each in (first, then))
        crawl = Crawl(site.url, domains=["127.0.0.1"], **ours(any_server, **first))
        wait_for(site, 60)
        crawl.stop()
        assert crawl.stats()["finish_reason"] == "shutdown"
        before = set(site.fetched())
        urls = [site.at("127.0.0.1", each) for each in sorted(site.pages)]
        Crawl(*urls, spider="Finds", **ours(any_server, **then)).stats()
        check(site, stopped=True)
        assert 60 <= len(before) < len(site.pages)


@pytest.mark.slow
def test_an_endless_start(any_server):
    """The requests of a ``start()`` that never ends are fetched, and the spider can be stopped."""
    with Served(count=100) as site:
        crawl = Crawl(site.url, spider="Endless", domains=["127.0.0.1"], **ours(any_server))
        wait_for(site, 100)
        crawl.stop()
        crawl.stats()
        check(site)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "reason"), [(True, "shutdown"), (False, "enough")])
def test_a_start_that_closes_the_spider(any_server, engine, reason):
    """The crawl ends if ``start()`` itself stops the engine or closes the spider."""
    with Served(count=20) as site:
        urls = [site.url] * (1 + engine)
        stats = Crawl(*urls, spider="StopsItself", domains=["127.0.0.1"], **ours(any_server)).stats()
        assert stats["finish_reason"] == reason


@pytest.mark.slow
def test_a_crawl_on_disk(any_server, tmp_path):
    """A crawl with JOBDIR goes on where it stopped."""
    job = {"JOBDIR": str(tmp_path)}
    with Served(count=250, delay=0.01) as site:
        crawl = Crawl(site.url, domains=["127.0.0.1"], **ours(any_server, **job))
        wait_for(site, 60)
        crawl.stop()
        crawl.stats()
        assert len(site.fetched()) < len(site.pages)
        Crawl(site.url, domains=["127.0.0.1"], **ours(any_server, **job)).stats()
        check(site, site.url)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, pytest.param(60, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("claims", [False, True], ids=["", "claims"])
def test_redis_dies_and_comes_back(make_server, claims, seconds):
    """With "pause" the crawl goes on when Redis is back, and fetches each page once; with claims it commits all."""
    server = make_server(appendonly="yes", appendfsync="always")
    more = {"URIFILTER_TIMEOUT": 0.5, "URIFILTER_CLAIM_DELAY": 1, "URIFILTER_CLAIM_FAILURES": 2}
    with Served(count=400, delay=0.02) as site:
        crawl = Crawl(site.url, domains=["127.0.0.1"], **ours(server, claims=claims, **more))
        wait_for(site, 50)
        server.kill()
        wait_until(lambda: AWAY in crawl.log(), "it does not see that Redis is away")
        before = len(site.fetched())
        time.sleep(seconds)
        server.start()
        stats = crawl.stats()
        assert before < len(site.pages)
        assert stats["finish_reason"] == "finished"
        assert stats["urifilter/errors"] > 0
        if claims:
            assert set(site.fetched()) == site.pages.keys()
            check_committed(server, site)
        else:
            check(site)


@pytest.mark.slow
def test_redis_is_away_at_the_beginning(make_server):
    """A crawl waits for its server."""
    server = make_server(appendonly="yes", appendfsync="always")
    server.kill()
    with Served(count=100) as site:
        crawl = Crawl(site.url, domains=["127.0.0.1"], **ours(server, URIFILTER_TIMEOUT=0.5))
        wait_until(lambda: AWAY in crawl.log(), "it does not see that Redis is away")
        assert site.fetched() == []
        server.start()
        assert crawl.stats()["finish_reason"] == "finished"
        check(site)


@pytest.mark.slow
@pytest.mark.parametrize(("on_error", "reason"), [("pass", "finished"), ("close", "urifilter_unavailable")])
def test_redis_stays_away(make_server, on_error, reason):
    """With "pass" the crawl goes on without Redis, with "close" it ends."""
    server = make_server()
    with Served(count=300, delay=0.01) as site:
        more = {"URIFILTER_TIMEOUT": 0.5, "URIFILTER_ON_ERROR": on_error, "DEPTH_LIMIT": 2}
        crawl = Crawl(site.url, domains=["127.0.0.1"], **ours(server, **more))
        wait_for(site, 3)
        server.kill()
        assert crawl.stats()["finish_reason"] == reason


@pytest.mark.slow
def test_a_filter_that_is_dropped(any_server):
    """The spider closes and says why, because it would wait for ever."""
    with Served(count=1000, delay=0.02) as site:
        crawl = Crawl(site.url, domains=["127.0.0.1"], **ours(any_server))
        wait_for(site, 50)
        with UriFilter.open("news", redis=any_server.url) as news:
            news.drop()
        stats = crawl.stats()
        assert stats["finish_reason"] == "urifilter_error"
        assert "The filter cannot be used: " in stats["log"]
        assert stats["log_count/ERROR"] == 1


@pytest.mark.slow
@needs_scrapy_redis
@pytest.mark.parametrize("persist", [False, True])
def test_the_scheduler_of_scrapy_redis(any_server, persist):
    """Two processes share a queue and a filter; the filter is there after the first has closed.

    Without SCHEDULER_PERSIST the first deletes the queue of both: it may not close before the second is done, too.
    """
    queue = IN_REDIS | {"REDIS_URL": any_server.url, "SCHEDULER_PERSIST": persist}
    with Served(count=250, delay=0.005) as site:
        urls = site.url, site.at("127.0.0.1", "/part1/1.html")
        more = {"spider": "Follow" if persist else "Endless", "domains": ["127.0.0.1"]}
        crawls = [Crawl(url, **more, **ours(any_server, **queue)) for url in urls]
        if not persist:
            wait_for(site, len(site.pages))
            for each in crawls:
                each.stop()
        stats = [each.stats() for each in crawls]
        check(site, *urls, stopped=not persist)
        assert ("URIFILTER_CLEAR" in stats[0]["log"]) is not persist
        again = Crawl(site.url, spider="Finds", domains=["127.0.0.1"], **ours(any_server, **queue)).stats()
        assert again["dupefilter/filtered"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        {"SPIDER_MIDDLEWARES": {"urifilter_redis.scrapy.UriSpiderMiddleware": 10}},
        {"SCHEDULER": "urifilter_redis.scrapy.UriFilterScheduler"},
    ],
    ids=["middleware", "scheduler"],
)
def test_a_part_alone(any_server, part):
    """The spider closes, and says which setting is missing."""
    with Served(count=20) as site:
        stats = Crawl(site.url, **ours(any_server, ADDONS={}, **part)).stats()
        assert stats["finish_reason"] == "urifilter_error"
        assert "Both parts are needed: ADDONS = {" in stats["log"]
