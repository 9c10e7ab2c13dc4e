"""Crawls by Scrapy with claims, in processes of their own: what a killed one had in flight is fetched by the others."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest
from support.scrapy_crawl import Crawl, check, check_committed, in_flight, ours
from support.servers import wait_until
from support.site import Served, star

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("scrapy") is None, reason="Scrapy is not installed"),
    pytest.mark.slow,
]


def settings(server, **more):
    return ours(server, claims=True, **{"URIFILTER_CLAIM_DELAY": 1, "URIFILTER_CLAIM_FAILURES": 2} | more)


def test_one_of_three_is_killed(any_server, tmp_path):
    """Its pages are fetched by the others: every page of the site is fetched and committed."""
    with Served(count=600, delay=0.01) as site:
        starts = [site.at("127.0.0.1", path) for path in sorted(site.pages)[:3]]
        more = {"domains": ["127.0.0.1"], "together": (str(tmp_path), 3)} | settings(any_server)
        crawls = [Crawl(site.url, url, **more) for url in starts]
        wait_until(lambda: len(site.fetched()) > 150, "the crawl does not begin")
        crawls[0].kill()
        stats = [each.stats() for each in crawls[1:]]
        assert [each["finish_reason"] for each in stats] == ["finished"] * 2
        assert sum(each.get("urifilter/reclaimed", 0) for each in stats) > 0
        assert set(site.fetched()) == site.pages.keys()
        check_committed(any_server, site)
        fails = sum(page.has_failed for page in site.pages.values())
        again = [path for path, times in Counter(site.fetched()).items() if times > 1]
        assert len(again) < 150
        # on a slow machine a lease may lapse while its page fails, and another crawl gives the page up, too
        assert 0 < sum(each.get("urifilter/rejected", 0) for each in stats) <= fails + len(again)


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
def test_three_share_what_one_finds(any_server, tmp_path, is_killed):
    """None of three that begin with one page fetches more than half of the site, and none fetches another's page."""
    pages = star(300)
    with Served(pages=pages, delay=0.5) as site:
        more = {"together": (str(tmp_path), 3)} | settings(any_server, URIFILTER_SHARE=20, URIFILTER_LEASE=10)
        crawls = [Crawl(site.url, **more) for _ in range(3)]
        if is_killed:
            wait_until(lambda: len(site.fetched()) > 100, "the crawl does not begin")
            crawls.pop(0).kill()
        stats = [each.stats() for each in crawls]
        assert {each["finish_reason"] for each in stats} == {"finished"}
        check_committed(any_server, site)
        times = Counter(site.fetched())
        assert times.pop(site.start) == 3
        assert times.keys() == pages.keys() - {site.start}
        twice = sum(times.values()) - len(times)
        assert min(each["urifilter/reclaimed"] for each in stats) > 0
        if is_killed:
            assert twice <= 16 + 20  # CONCURRENT_REQUESTS, and pages that were read and not committed
        else:
            assert twice == 0
            assert max(each["response_received_count"] for each in stats) <= len(pages) / 2


def test_all_are_killed(any_server):
    """A crawl that comes later finishes: every page is fetched, although it begins at a page that was fetched."""
    with Served(count=250, delay=0.01) as site:
        more = {"domains": ["127.0.0.1"]} | settings(any_server)
        crawls = [Crawl(site.url, site.at("127.0.0.1", path), **more) for path in sorted(site.pages)[:2]]
        wait_until(lambda: len(site.fetched()) > 80, "the crawl does not begin")
        for each in crawls:
            each.kill()
        assert set(site.fetched()) < site.pages.keys()
        assert in_flight(any_server) > 0
        assert Crawl(site.url, **more).stats()["finish_reason"] == "finished"
        assert set(site.fetched()) == site.pages.keys()
        check_committed(any_server, site)


def test_a_spider_that_is_stopped(any_server):
    """Its pages are offered at once: another crawl takes them over without waiting for a lease."""
    with Served(count=250, delay=0.01) as site:
        more = {"domains": ["127.0.0.1"]} | settings(any_server, URIFILTER_LEASE=300, URIFILTER_CLAIM_FAILURES=1)
        crawl = Crawl(site.url, **more)
        wait_until(lambda: len(site.fetched()) > 60, "the crawl does not begin")
        crawl.stop()
        assert crawl.stats()["finish_reason"] == "shutdown"
        assert set(site.fetched()) < site.pages.keys()
        Crawl(site.url, **more).stats()
        check(site, site.url, stopped=True)
        check_committed(any_server, site)


def test_a_scheduler_that_keeps_requests(any_server, tmp_path):
    """The crawl does not begin with JOBDIR, and says why."""
    with Served(count=20) as site:
        stats = Crawl(site.url, **settings(any_server, JOBDIR=str(tmp_path))).stats()
        assert "URIFILTER_CLAIM needs Scrapy's own scheduler without JOBDIR" in stats["log"]
        assert site.fetched() == []
