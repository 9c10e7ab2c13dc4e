"""What a user of Scrapy may rely on: crawls of small sites, with Scrapy's own filter beside the add-on.

Each crawl runs in a process of its own, over a site on loopback whose log of requests is compared.
"""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest
from support.scrapy_crawl import ADDON, Crawl
from support.servers import free_port
from support.site import Page, Served, star

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("scrapy") is None, reason="Scrapy is not installed"),
    pytest.mark.slow,
]

#: Settings of claims, under which a test does not wait for long.
CLAIMS = {"URIFILTER_CLAIM": True, "URIFILTER_LEASE": 5, "URIFILTER_CLAIM_DELAY": 0, "URIFILTER_CLAIM_FAILURES": 1}


def ours(server, **more):
    return {"ADDONS": ADDON, "URIFILTER_REDIS_URL": server.url, "URIFILTER_NAME": "news"} | more


def compared(server, claims, **more):
    """The settings of two crawls: with Scrapy's own filter, and with the add-on."""
    return more, ours(server, **(CLAIMS if claims else {}), **more)


def crawl(site, settings, spider="Follow") -> dict:
    return Crawl(site.url, spider=spider, domains=["127.0.0.1"], **settings).stats()


claims_or_not = pytest.mark.parametrize("claims", [False, True], ids=["", "claims"])


@claims_or_not
def test_many_pages_link_to_one_that_fails(any_server, claims):
    """It is downloaded as often as with Scrapy's own filter, once and for each retry, and is new for the next crawl."""
    counts = []
    for settings in compared(any_server, claims):
        with Served(pages=star(100, "/bad.html", more=(Page("/bad.html", 500),))) as site:
            crawl(site, settings)
            counts.append(Counter(site.fetched()))
    assert counts[0] == counts[1]
    assert counts[1]["/bad.html"] == 2


def test_a_page_that_fails_is_new_for_the_next_crawl(any_server):
    """Without claims it is forgotten as the crawl ends, in one call with all others that failed."""
    bad = [Page(f"/bad{number}.html", 500) for number in range(20)]
    with Served(pages=star(5, *(each.path for each in bad), more=tuple(bad))) as site:
        stats = crawl(site, ours(any_server))
        assert stats["urifilter/given_back"] == 20
        before = Counter(site.fetched())
        Crawl(*(site.at("127.0.0.1", each) for each in site.pages), spider="Finds", **ours(any_server)).stats()
        again = Counter(site.fetched()) - before
        assert again.keys() == {each.path for each in bad}


@claims_or_not
def test_many_pages_link_to_a_host_that_refuses(any_server, claims):
    """Downloads of it are as many as with Scrapy's own filter."""
    counts = []
    for settings in compared(any_server, claims):
        with Served(pages=star(100, f"http://127.0.0.1:{free_port()}/bad.html")) as site:
            counts.append(crawl(site, settings)["downloader/request_count"])
    assert counts[0] == counts[1]


@claims_or_not
def test_many_pages_link_to_one_that_robots_txt_forbids(any_server, claims):
    """It is asked about and forbidden once."""
    robots, pages = Page("/robots.txt", text="User-agent: *\nDisallow: /bad.html\n"), []
    for settings in compared(any_server, claims, ROBOTSTXT_OBEY=True):
        with Served(pages=star(100, "/bad.html", more=(robots, Page("/bad.html")))) as site:
            pages.append(crawl(site, settings)["robotstxt/forbidden"])
            assert "/bad.html" not in site.fetched()
    assert pages == [1, 1]


def test_claims_try_a_failed_page_as_often_as_set(any_server):
    """Links to it do not make it begin anew: URIFILTER_CLAIM_FAILURES tries, each with Scrapy's one retry."""
    with Served(pages=star(100, "/bad.html", more=(Page("/bad.html", 500),)), delay=0.01) as site:
        stats = crawl(site, ours(any_server, **CLAIMS | {"URIFILTER_CLAIM_FAILURES": 3}))
        assert site.fetched().count("/bad.html") == 3 * 2
        assert stats["urifilter/given_up"] == 1
