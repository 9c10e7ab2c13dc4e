"""What a user of Scrapy may rely on: crawls of small sites, with Scrapy's own filter beside the add-on.

Each crawl runs in a process of its own, over a site on loopback whose log of requests is compared.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.scrapy_crawl import ADDON, Crawl
from support.servers import free_port, wait_until
from support.site import Page, Served, star

from urifilter_redis import UriFilter

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("scrapy") is None, reason="Scrapy is not installed"),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]

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
def test_the_same_pages(any_server, claims):
    """Of a site with redirects, chains and loops of them, and broken pages, as often as with Scrapy's own filter."""
    counts = []
    for settings in compared(any_server, claims):
        with Served(count=250) as site:
            crawl(site, settings)
            counts.append(site.counts())
    circle = {page.path for page in site.pages.values() if page.in_circle}
    assert {path for path in counts[0] if counts[0][path] != counts[1][path]} == circle
    assert {counts[1][path] for path in circle} == {3}  # a page may set a cookie and redirect to itself


@claims_or_not
def test_many_pages_link_to_one_that_fails(any_server, claims):
    """It is downloaded as often as with Scrapy's own filter, once and for each retry, and is new for the next crawl."""
    counts = []
    for settings in compared(any_server, claims):
        with Served(pages=star(100, "/bad.html", more=(Page("/bad.html", 500),))) as site:
            crawl(site, settings)
            counts.append(site.counts())
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
    _, settings = compared(any_server, claims)
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
    port, settings = free_port(), compared(any_server, claims)[1]
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


def test_a_cycle_of_pages_that_pass_on_their_meta(any_server):
    """That a request is a start goes with no meta: each page is fetched once, as with Scrapy's own filter."""
    pages = {
        path: Page(path, links=(f"/{(n + 1) % 10}.html",)) for n, path in enumerate(f"/{n}.html" for n in range(10))
    }
    counts = []
    for settings in compared(any_server, claims=False):
        with Served(pages=pages) as site:
            start = site.at("127.0.0.1", "/0.html")
            Crawl(start, spider="CopyMeta", **settings, CLOSESPIDER_PAGECOUNT=100).stats()
            counts.append(site.counts())
    assert counts[0] == counts[1] == Counter(pages.keys())


def test_a_start_that_another_process_has_in_flight(any_server):
    """It is fetched, and not committed: the other process does that."""
    from scrapy import Request
    from scrapy.utils.request import fingerprint

    with Served(pages=star(3)) as site, UriFilter.create("news", redis=any_server.url, capacity=1000) as news:
        item = fingerprint(Request(site.url)).hex()
        with news.claims() as mine:
            mine.claim(item)
            settings = ours(any_server, **CLAIMS)
            running = Crawl(site.url, domains=["127.0.0.1"], **settings)
            wait_until(lambda: len(set(site.fetched())) == 4, "it does not fetch the pages")
            assert news.ages([item]) == [-1]
            assert mine.commit([item]) == [True]
        running.stats()


@claims_or_not
def test_an_item_that_a_pipeline_raises_for(any_server, claims):
    """Its page is not committed: the next crawl has it again. An item that is dropped is no failure."""
    settings = ours(any_server, **(CLAIMS | {"URIFILTER_CLAIM_FAILURES": 2} if claims else {}))
    with Served(pages=star(2, "/bad.html", "/dull.html", more=(Page("/bad.html"), Page("/dull.html")))) as site:
        broken = Crawl(site.url, spider="Items", domains=["127.0.0.1"], ITEM_PIPELINES={"Picky": 1}, **settings)
        stats = broken.stats()
        assert site.fetched().count("/bad.html") == 1 + claims
        assert stats.get("urifilter/rejected", 0) == claims
        if not claims:  # in a second crawl, whose pipeline is mended
            Crawl(*map(site.at, ["127.0.0.1"] * 5, site.pages), spider="Finds", **settings).stats()
            assert Counter(site.fetched()) == Counter([*site.pages, "/bad.html"])


@pytest.mark.parametrize("on_error", ["pause", "pass", "close"])
@pytest.mark.parametrize("wrong", ["password", "right"])
def test_a_server_that_refuses_the_user(make_server, wrong, on_error):
    """The crawl does not begin, and says why."""
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


@claims_or_not
def test_a_crawl_that_is_stopped(any_server, claims):
    """The next crawl fetches the pages that were not fetched; without claims the log says how many."""
    with Served(count=250, delay=0.01) as site:
        settings = compared(any_server, claims)[1]
        running = Crawl(site.url, domains=["127.0.0.1"], **settings)
        wait_until(lambda: len(site.fetched()) > 60, "nothing is fetched")
        running.stop()
        stats = running.stats()
        assert claims or f"{stats['urifilter/kept']} pages that were found and not fetched are kept" in stats["log"]
        assert len(set(site.fetched())) < len(site.pages)
        crawl(site, settings)
        assert set(site.fetched()) == site.pages.keys()


def test_requests_without_a_filter_that_are_stopped(any_server):
    """They are kept as all others."""
    with Served(count=250, delay=0.01) as site:
        running = Crawl(site.url, spider="NoFilter", domains=["127.0.0.1"], **ours(any_server))
        wait_until(lambda: len(site.fetched()) > 30, "nothing is fetched")
        running.stop()
        stats = running.stats()
        left = stats["scheduler/enqueued/memory"] - stats["scheduler/dequeued/memory"]
        assert left > 0
        assert stats["urifilter/kept"] == left


def test_pass_while_redis_is_away(make_server):
    """Each page is fetched once by this crawl, and is recorded as seen when Redis is back."""
    server = make_server(appendonly="yes", appendfsync="always")
    with Served(count=300, delay=0.02) as site:
        settings = ours(server, URIFILTER_ON_ERROR="pass", URIFILTER_TIMEOUT=0.5)
        running = Crawl(site.url, domains=["127.0.0.1"], **settings)
        wait_until(lambda: len(site.fetched()) > 30, "nothing is fetched")
        server.kill()
        wait_until(lambda: "(URIFILTER_ON_ERROR)" in running.log(), "it does not see that Redis is away")
        seen = len(set(site.fetched()))
        wait_until(lambda: len(set(site.fetched())) > seen + 60, "nothing is fetched without Redis")
        running.suspend()  # else it may be over before Redis is back: then nobody can tell what was fetched
        server.start()
        running.resume()
        stats = running.stats()
        assert stats["urifilter/unasked"] > 0
        before = Counter(site.fetched())
        assert before.keys() == site.pages.keys()
        # known before Redis went, and found again while it was away
        assert sum(before.values()) < 2 * len(site.pages)
        assert max(before.values()) <= 2 * 3
        Crawl(*(site.at("127.0.0.1", each) for each in site.pages), spider="Finds", **settings).stats()
        again = Counter(site.fetched()) - before
        assert {path for path in again if not site.pages[path].has_failed} == set()


@pytest.mark.parametrize(
    "program", [["-m", "scrapy"], [str(Path(sys.executable).parent / "scrapy")]], ids=["-m", "bin"]
)
@pytest.mark.parametrize("command", ["parse", "fetch", "shell"])
def test_commands_that_look_at_a_page(make_server, command, program):
    """They work on a page that was seen, and leave the filter alone."""
    server = make_server()
    folder = ROOT / "examples" / "crawl_scrapy"
    with Served(pages=star(3)) as site:
        options = {"parse": ["--spider=site", "-a", f"url={site.url}"], "shell": ["-c", "response.status"]}
        done = subprocess.run(
            [sys.executable, *program, command, *options.get(command, ()), site.url],
            cwd=folder,
            env=os.environ
            | {
                "SCRAPY_SETTINGS_MODULE": "settings",
                "URIFILTER_REDIS_URL": server.url,
                "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert site.fetched() == ["/index.html"]
        assert {"parse": "leaf0.html", "fetch": "leaf0.html", "shell": "200"}[command] in done.stdout
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
