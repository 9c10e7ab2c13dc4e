"""What a user of Scrapy may rely on: crawls of small sites, with Scrapy's own filter beside the add-on.

Each crawl runs in a process of its own, over a site on loopback whose log of requests is compared.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.scrapy_crawl import CLAIMS, Crawl, ours, run_in_project
from support.servers import free_port, wait_until
from support.site import Page, Served, star

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("scrapy") is None, reason="Scrapy is not installed"),
    pytest.mark.slow,
]


claims_or_not = pytest.mark.parametrize("claims", [False, True], ids=["", "claims"])


def crawl(site, settings, spider="Follow") -> dict:
    return Crawl(site.url, spider=spider, domains=["127.0.0.1"], **settings).stats()


@claims_or_not
def test_the_same_pages(any_server, claims):
    """Of a site with redirects, chains and loops of them, and broken pages, as often as with Scrapy's own filter."""
    counts = []
    for settings in ({}, ours(any_server, claims=claims)):
        with Served(count=250) as site:
            crawl(site, settings)
            counts.append(site.counts())
    circle = {page.path for page in site.pages.values() if page.in_circle}
    assert {path for path in counts[0] if counts[0][path] != counts[1][path]} == circle
    assert {counts[1][path] for path in circle} == {3}  # a page may set a cookie and redirect to itself


def test_claims_try_a_failed_page_as_often_as_set(any_server):
    """Links to it do not make it begin anew: URIFILTER_CLAIM_FAILURES tries, each with Scrapy's one retry."""
    with Served(pages=star(100, "/bad.html", more=(Page("/bad.html", 500),)), delay=0.01) as site:
        stats = crawl(site, ours(any_server, **CLAIMS | {"URIFILTER_CLAIM_FAILURES": 3}))
        assert site.fetched().count("/bad.html") == 3 * 2
        assert stats["urifilter/rejected"] == 1


XML = '<?xml version="1.0"?><{0} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{1}</{0}>'


def sitemap(path, kind, inner, *urls):
    """A sitemap of addresses."""
    return Page(path, text=XML.format(kind, "".join(f"<{inner}><loc>{each}</loc></{inner}>" for each in urls)))


@claims_or_not
def test_a_second_run_of_a_sitemap_spider(any_server, claims):
    """It reads the sitemaps again, and fetches the pages that are new in them."""
    port = free_port()
    at = f"http://127.0.0.1:{port}".__add__
    index = sitemap("/index.xml", "sitemapindex", "sitemap", at("/pages.xml"))
    settings = ours(any_server, claims=claims)
    for known, fetched in ((3, {"/0.html", "/1.html", "/2.html"}), (5, {"/3.html", "/4.html"})):
        urls = [at(f"/{number}.html") for number in range(known)]
        pages = [
            index,
            sitemap("/pages.xml", "urlset", "url", *urls),
            *(Page(f"/{number}.html") for number in range(5)),
        ]
        with Served(pages={each.path: each for each in pages}, port=port) as site:
            assert Crawl(at("/index.xml"), spider="Sitemap", **settings).stats()["finish_reason"] == "finished"
            assert Counter(site.fetched()) == Counter(["/index.xml", "/pages.xml", *fetched])


@claims_or_not
def test_a_second_run(any_server, claims):
    """It fetches its start, finds what is new there, and nothing else; the third finds nothing."""
    port, settings = free_port(), ours(any_server, claims=claims)
    for leaves, more in ((3, {"/leaf0.html", "/leaf1.html", "/leaf2.html"}), (4, {"/leaf3.html"}), (4, set())):
        with Served(pages=star(leaves), port=port) as site:
            crawl(site, settings)
            assert Counter(site.fetched()) == Counter(["/index.html", *more])


@pytest.mark.parametrize("dont_filter", [False, True])
@pytest.mark.parametrize("status", [200, 302])
def test_a_start_that_was_found_before(any_server, status, dont_filter):
    """It is fetched, and so is the page that it redirects to."""
    last = Page("/last.html", links=("/end.html",))
    pages = [Page("/start.html", status, "/last.html" if status == 302 else None), last, Page("/end.html")]
    with Served(pages={each.path: each for each in pages}) as site:
        urls = [site.at("127.0.0.1", each.path) for each in pages]
        Crawl(*urls, spider="Finds", **ours(any_server)).stats()
        before = Counter(site.fetched())
        assert set(before.values()) == {1}
        stats = Crawl(urls[0], spider="Unfiltered" if dont_filter else "Follow", **ours(any_server)).stats()
        again = Counter(site.fetched()) - before
        assert again == Counter(["/start.html", *(["/last.html"] if status == 302 else [])])
        assert stats["finish_reason"] == "finished"


@pytest.mark.parametrize("on_error", ["pause", "pass", "close"])
@pytest.mark.parametrize("wrong", ["password", "right"])
def test_a_server_that_refuses_the_user(make_server, wrong, on_error):
    """The crawl does not begin; one line says why, and no traceback goes down to the client of Redis."""
    server = make_server()
    server.client().execute_command(
        "ACL", "SETUSER", "crawl", "on", ">secret", "~*", "&*", "+@all", "-hset", "-evalsha"
    )
    url = server.url.replace("://", "://crawl:wrong@" if wrong == "password" else "://crawl:secret@")
    with Served(pages=star(3)) as site:
        stats = crawl(site, ours(server, URIFILTER_ON_ERROR=on_error) | {"URIFILTER_REDIS_URL": url})
        assert site.fetched() == []
        said = "does not accept this user name and password" if wrong == "password" else "this user may not run"
        assert said in stats["log"]
    lines = stats["log"].splitlines()
    assert sum("The filter cannot be used: " in line for line in lines) == 1
    assert not [line for line in lines if "/redis/" in line or "direct cause" in line]  # of the client's traceback


def test_a_right_that_is_taken_away(make_server):
    """The spider closes, and says why: it would wait for ever."""
    server = make_server()
    user = ("ACL", "SETUSER", "crawl", "on", ">secret", "~*", "&*", "+@all")
    server.client().execute_command(*user)
    with Served(count=400, delay=0.02) as site:
        settings = ours(server) | {"URIFILTER_REDIS_URL": server.url.replace("://", "://crawl:secret@")}
        running = Crawl(site.url, domains=["127.0.0.1"], **settings)
        wait_until(lambda: len(site.fetched()) > 20, "nothing is fetched")
        server.client().execute_command(*user, "-evalsha")
        stats = running.stats()
        assert stats["finish_reason"] == "urifilter_error"
        assert "this user may not run the commands" in stats["log"]


@pytest.mark.parametrize(
    "program", [["-m", "scrapy"], [str(Path(sys.executable).parent / "scrapy")]], ids=["-m", "bin"]
)
@pytest.mark.parametrize("command", ["parse", "fetch", "shell"])
def test_commands_that_look_at_a_page(make_server, command, program):
    """They work on a page that was seen, and leave the filter alone."""
    server = make_server()
    with Served(pages=star(3)) as site:
        options = {"parse": ["--spider=site", "-a", f"url={site.url}"], "shell": ["-c", "response.status"]}
        out = run_in_project(server, *program, command, *options.get(command, ()), site.url)
        assert site.fetched() == ["/index.html"]
        assert {"parse": "leaf0.html", "fetch": "leaf0.html", "shell": "200"}[command] in out
    assert server.client().dbsize() == 0


def test_again_after(clocked, monkeypatch):
    """Runs that are further apart than the time fetch all pages each time; earlier ones fetch their start."""
    server, clock = clocked
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)  # for the crawls: the server and they have one time
    with Served(pages=star(5)) as site:
        for day, count in ((0, 6), (1, 1), (20, 1), (36, 6), (72, 6), (108, 6)):
            clock.ahead(day * 86_400)
            before = len(site.fetched())
            crawl(site, ours(server, URIFILTER_AGAIN_AFTER="30d"))
            assert len(site.fetched()) - before == count, day
