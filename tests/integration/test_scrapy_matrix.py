"""What else a project of Scrapy does: each case with Scrapy's own filter, and with the add-on beside it.

Compared are the requests that the site got, and what callbacks and errbacks saw. Then a crawl that finds all pages of
the site anew fetches those that are new for it.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from support.scrapy_crawl import Crawl, check, ours
from support.servers import PATIENCE, free_port, wait_until
from support.site import Page, Served, star

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("scrapy") is None, reason="Scrapy is not installed"),
    pytest.mark.slow,
]


REFRESH = '<html><head><meta http-equiv="refresh" content="0; url=/next.html"></head></html>'


claims_or_not = pytest.mark.parametrize("claims", [False, True], ids=["", "claims"])


@dataclass(frozen=True)
class Case:
    """A spider, its site and settings; ``{port}`` and ``{folder}`` in them are replaced.

    Attributes:
        failed: the pages that failed: new for the next crawl, and with claims rejected.
        new: the pages that are new for the next crawl in any case: nobody has asked about them, or they are forbidden.
        exact: how often each crawl fetches some pages, and some of its stats.
    """

    pages: dict[str, Page]
    spider: str = "Follow"
    settings: dict[str, object] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    new: set[str] = field(default_factory=set)
    exact: dict[str, int] = field(default_factory=dict)


def page(path, *links, **more):
    return Page(f"/{path}.html", links=tuple(links), **more)


OUT = "http://localhost:{port}"
ROBOTS = "User-agent: *\nDisallow: /bad.html\n"
CYCLE = {f"/{one}.html": page(one, f"/{two}.html") for one, two in itertools.pairwise(["index", *"abcdefghi", "index"])}
CASES = {
    "redirect to a page that was seen": Case(
        star(3, "/moved.html", "/to_start.html",
             more=(Page("/moved.html", 302, "/leaf0.html"), Page("/to_start.html", 301, "/index.html")))
    ),
    "redirect off the site": Case(
        star(3, "/moved.html", more=(Page("/moved.html", 302, f"{OUT}/out.html"), page("out"))), new={"/out.html"}
    ),
    "meta refresh": Case(star(3, "/refresh.html", more=(page("refresh", text=REFRESH), page("next", "/leaf1.html")))),
    "retry by the callback": Case(star(2, "/bad.html", more=(page("bad"),)), "RetriesItself"),
    "bodies": Case(star(2), "Bodies"),
    "cookies and cb_kwargs": Case(star(2, "/end.html", "/end.html", more=(page("end"),)), "Cookies"),
    "errbacks": Case(
        star(
            2, "/bad.html", "/hung.html", "/gone.html",
            more=(Page("/bad.html", 500), Page("/hung.html", 0), Page("/gone.html", 404), page("instead", "/last.html"),
                  page("last")),
        ),
        "Errbacks",
        failed={"/bad.html", "/hung.html"},
    ),
    "a pipeline's requests": Case(
        star(3, more=tuple(page(f"more{n}", "/leaf0.html") for n in range(3))),
        "Items",
        {"ITEM_PIPELINES": {"tests.support.scrapy_spiders.AsksForMore": 1}},
    ),
    "an extension's requests": Case(
        star(2, more=(page("idle", "/leaf1.html", "/found.html"), page("found"))),
        settings={"EXTENSIONS": {"tests.support.scrapy_spiders.AsksWhenIdle": 1}},
    ),
    "downloads within a callback": Case(star(3, "/inline.html", more=(page("inline"),)), "Inline"),
    "an async generator": Case(star(4, "/leaf0.html", "/end.html", more=(page("end"),)), "Waits"),
    "a callback that raises half-way": Case(
        star(2, "/bad.html", more=(page("bad", *(f"/{n}.html" for n in range(4))), *map(page, map(str, range(4))))),
        "HalfWay",
        failed={"/bad.html"},
        new={"/2.html", "/3.html"},
    ),
    "an inner middleware that raises": Case(
        star(2, "/bad.html", "/bad_ignored.html", more=(page("bad"), page("bad_ignored"))),
        settings={"DOWNLOADER_MIDDLEWARES": {"tests.support.scrapy_spiders.Breaks": 570}},
        failed={"/bad.html", "/bad_ignored.html"},
    ),
    "HTTP cache": Case(
        star(3, "/bad.html", more=(Page("/bad.html", 404),)),
        settings={"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": "{folder}/cache"},
    ),
    "pages of other sites": Case(
        star(1, *(f"{OUT}/{each}.html" for each in ("plain", "unfiltered", "allowed")),
             more=(page("plain"), page("unfiltered"), page("allowed"))),
        "OtherSites",
        new={"/plain.html", "/unfiltered.html", "/allowed.html"},
    ),
    "many links to a page that fails": Case(
        star(100, "/bad.html", more=(Page("/bad.html", 500),)), failed={"/bad.html"}, exact={"/bad.html": 2}
    ),
    "many links to a host that refuses": Case(star(100, "http://127.0.0.1:1/bad.html")),
    "many links to a page that robots.txt forbids": Case(
        star(100, "/bad.html", more=(Page("/robots.txt", text=ROBOTS), page("bad"))),
        settings={"ROBOTSTXT_OBEY": True},
        new={"/bad.html", "/robots.txt"},
        exact={"/bad.html": 0, "robotstxt/forbidden": 1},
    ),
    "a cycle of pages that pass on their meta": Case(  # which does not say that a request is a start
        CYCLE, "CopyMeta", {"CLOSESPIDER_PAGECOUNT": 100}, exact=dict.fromkeys(CYCLE, 1)
    ),
    "depth": Case(star(3, "/deep.html", more=(page("deep"),)), settings={"DEPTH_LIMIT": 1}, new={"/deep.html"}),
}  # fmt: skip


def put(value, port, folder):
    """A value with the port of the site and a folder in it."""
    if isinstance(value, str):
        return value.replace("{port}", str(port)).replace("{folder}", str(folder))
    if isinstance(value, dict):
        return {name: put(each, port, folder) for name, each in value.items()}
    return value


@claims_or_not
@pytest.mark.parametrize("name", CASES)
def test_as_with_scrapys_own_filter(any_server, tmp_path, name, claims):
    """The same requests, seen by the same callbacks; the next crawl fetches what failed, and what nobody has found."""
    case, port, told = CASES[name], free_port(), []
    pages = {
        path: replace(
            each, location=put(each.location, port, ""), links=tuple(put(link, port, "") for link in each.links)
        )
        for path, each in case.pages.items()
    }
    for folder, made in (("own", {}), ("ours", ours(any_server, claims=claims))):
        settings = put(case.settings, port, tmp_path / folder) | made
        with Served(pages=pages, port=port) as site:
            stats = Crawl(site.url, spider=case.spider, domains=["127.0.0.1"], **settings).stats()
            saw = {name: count for name, count in stats.items() if name.startswith("saw/")}
            told.append((site.counts(), saw, stats["finish_reason"], stats["downloader/request_count"]))
            exact = {**dict.fromkeys(case.exact, 0), **stats, **site.counts()}
            assert {each: exact[each] for each in case.exact} == case.exact
            if made:
                before = Counter(site.fetched("127.0.0.1:" + str(port)) + site.fetched("127.0.0.1"))
                found = [site.at("127.0.0.1", path) for path in pages]
                Crawl(*found, spider="Finds", domains=["127.0.0.1"], **made).stats()
                again = Counter(site.fetched("127.0.0.1:" + str(port)) + site.fetched("127.0.0.1")) - before
    assert told[0] == told[1]
    assert again.keys() == case.new | (set() if claims else case.failed)


#: A site whose links redirect to what is the same page for a filter, or to themselves once a cookie is set.
SPELLINGS = [
    Page("/index.html", links=("/k", "/d/index.html", "/cookie.html", "/back.html")),
    *(Page("/k", 301, "/k/"), Page("/k/"), Page("/d/index.html", 301, "/d/"), Page("/d/")),
    *(Page("/cookie.html", 302, "/cookie.html", cookie=True), Page("/back.html", 302, "/sets.html", cookie=True)),
    Page("/sets.html", 302, "/back.html"),
]


@claims_or_not
@pytest.mark.parametrize("normalize", ["none", "loose"])
def test_redirects_to_a_spelling_of_the_same_item(any_server, claims, normalize):
    """The page is scraped, once."""
    made = ours(any_server, claims=claims, URIFILTER_KEY="url", URIFILTER_NORMALIZE=normalize)
    with Served(pages={each.path: each for each in SPELLINGS}) as site:
        stats = Crawl(site.url, spider="Waits", **made).stats()
    scraped = {name.split()[1]: count for name, count in stats.items() if name.startswith("saw/page")}
    assert scraped == dict.fromkeys(("/index.html", "/k/", "/d/", "/cookie.html", "/back.html"), 1)


@claims_or_not
def test_redirects_in_a_circle(any_server, claims):
    """Each is visited three times, and has failed: the next crawl tries it again, or with claims it is rejected."""
    circle = Page("/a.html", 302, "/b.html"), Page("/b.html", 302, "/a.html"), Page("/self.html", 302, "/self.html")
    pages = star(1, "/a.html", "/self.html", more=circle)
    made = ours(any_server, claims=claims)
    with Served(pages=pages) as site:
        assert Crawl(site.url, **made).stats()["finish_reason"] == "finished"
        assert site.counts() == {"/index.html": 1, "/leaf0.html": 1, "/a.html": 3, "/b.html": 3, "/self.html": 3}
        Crawl(*(site.at("127.0.0.1", each.path) for each in circle[1:]), spider="Finds", **made).stats()
        assert sum(site.counts().values()) == 11 + 9 * (not claims)


@claims_or_not
def test_closed_by_a_count_of_pages(any_server, claims):
    """The next crawl fetches the rest."""
    with Served(pages=star(60), delay=0.01) as site:
        stats = Crawl(
            site.url, CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=2, **ours(any_server, claims=claims)
        ).stats()
        assert stats["finish_reason"] == "closespider_pagecount"
        left = site.pages.keys() - set(site.fetched())
        assert left
        assert (stats.get("urifilter/kept", 0) == len(left)) is not claims
        Crawl(site.url, **ours(any_server, claims=claims)).stats()
        assert site.pages.keys() == set(site.fetched())
        assert set(Counter(site.fetched()) - Counter(site.pages.keys())) <= {"/index.html"}


def test_a_crawl_that_is_stopped(any_server):
    """One Ctrl-C loses no page, and the next crawl fetches none once more, but for its start."""
    with Served(delay=0.002) as site:
        running = Crawl(site.url, domains=["127.0.0.1"], **ours(any_server))
        wait_until(lambda: len(site.fetched()) >= 400, "not so many are fetched", patience=4 * PATIENCE)
        running.stop()
        stats = running.stats()
        assert stats["finish_reason"] == "shutdown"
        assert f"{stats['urifilter/kept']} pages that were found and not fetched are kept for the next" in stats["log"]
        assert set(site.fetched()) < site.pages.keys()
        again = Crawl(site.url, domains=["127.0.0.1"], **ours(any_server)).stats()
        assert again["urifilter/taken_up"] == stats["urifilter/kept"]
        check(site, site.url, stopped=True)


@pytest.mark.parametrize("how", ["Ctrl-C twice", "kill"])
@pytest.mark.parametrize("kept", ["claims", "JOBDIR"])
def test_a_crawl_that_ends_at_once(any_server, tmp_path, how, kept):
    """With claims the next crawl fetches the rest. With JOBDIR it ends, and fetches no page once more."""
    more = ours(any_server, claims=kept == "claims", **({"JOBDIR": str(tmp_path)} if kept == "JOBDIR" else {}))
    with Served(pages=star(60), delay=0.5) as site:
        running = Crawl(site.url, **more)
        wait_until(lambda: len(site.fetched()) > 20, "nothing is fetched")
        if how == "kill":
            running.kill()
        else:
            running.stop()
            wait_until(lambda: "Send again to force" in running.log(), "it does not hear of Ctrl-C")
            running.stop()
            assert "forcing unclean shutdown" in running.stats()["log"]
        before = set(site.fetched())
        assert before < site.pages.keys()
        assert Crawl(site.url, **more).stats()["finish_reason"] == "finished"
        again = set(Counter(site.fetched()) - Counter(site.pages.keys()))
        if kept == "claims":
            assert set(site.fetched()) == site.pages.keys()
            assert again <= before  # those that were under way
        else:
            assert again <= {"/index.html"}


@claims_or_not
def test_two_spiders_of_a_process(any_server, claims):
    """They fetch each page once together."""
    with Served(count=200) as site:
        starts = [site.url, site.at("127.0.0.1", "/part1/1.html")]
        stats = Crawl(*starts, domains=["127.0.0.1"], count=2, **ours(any_server, claims=claims)).stats()
        assert stats["finish_reason"] == "finished"
        check(site, *starts)


def test_one_of_three_is_killed(any_server, tmp_path):
    """Without claims the others end, and fetch no page twice; the pages that the killed one had are fetched by none."""
    with Served(count=600, delay=0.01) as site:
        starts = [site.at("127.0.0.1", path) for path in sorted(site.pages)[:3]]
        more = {"domains": ["127.0.0.1"], "together": (str(tmp_path), 3)} | ours(any_server)
        crawls = [Crawl(url, **more) for url in starts]
        wait_until(lambda: len(site.fetched()) > 150, "the crawl does not begin")
        crawls[0].kill()
        assert [each.stats()["finish_reason"] for each in crawls[1:]] == ["finished"] * 2
        twice = [site.pages[path] for path, times in Counter(site.fetched()).items() if times > 1]
        assert [each for each in twice if not each.has_failed and not each.location and each.path not in starts] == []
