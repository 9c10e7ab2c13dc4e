"""The examples that crawl, against a real site: none of its pages is missing."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.programs import programs
from support.servers import wait_until
from support.site import Page, Served

from urifilter_redis import UriFilter

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Seconds that a crawl may take; only reached when something is wrong.
PATIENCE = 120

#: Pages that a process of the asyncio example fetches at the same time, and its tries of a page, as it says itself.
TASKS, TRIES = 16, 3


@pytest.fixture
def crawl(any_server, tmp_path):
    """Start an example that crawls a site; at the end it and its processes are killed if they still run."""
    with programs(tmp_path) as start:

        def start_example(name, site, *more, redis=("--redis", any_server.url)):
            # its folder is on the path, as it is where a reader runs it
            environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(EXAMPLES), os.environ["PYTHONPATH"]))}
            return start([sys.executable, EXAMPLES / f"{name}.py", site.url, *redis, *more], environment)

        yield start_example


def finished(process) -> str:
    """Wait for the end of an example; return its last line."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out.splitlines()[-1]


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_threads(crawl, count):
    """Threads that share a filter fetch each page once, broken ones and those of loops of redirects included."""
    with Served(count=count) as site:
        assert finished(crawl("crawl_threads", site)) == f"{count:,} pages fetched"
        assert Counter(site.fetched()) == Counter(site.pages.keys())
        assert finished(crawl("crawl_threads", site)) == "0 pages fetched"


def check_committed(site, server) -> None:
    """Every page is committed, and nobody has any in flight."""
    assert server.client().hlen("urifilter:{crawl-asyncio:0}:leases") == 0
    with UriFilter.open("crawl-asyncio", redis=server.url) as news:
        assert all(news.contains_many([site.at("127.0.0.1", path) for path in site.pages]))


def test_processes(crawl, any_server, monkeypatch):
    """Four processes with an event loop each fetch each page once, between them, and reject those that always fail."""
    monkeypatch.setenv("URIFILTER_REDIS_URL", any_server.url)
    with Served(count=1000) as site:
        last = finished(crawl("crawl_asyncio", site, "--lease", "5", redis=()))
        assert last == "1,000 pages fetched; processes that were started again: 0"
        failing = {path for path, page in site.pages.items() if page.fails}
        assert Counter(site.fetched()) == {path: TRIES if path in failing else 1 for path in site.pages}
        check_committed(site, any_server)
    with UriFilter.open("crawl-asyncio") as news:
        dead_letters = news.dead_letters(limit=1000)
    assert {each.item for each in dead_letters} == {site.at("127.0.0.1", path) for path in failing}
    assert {each.failures for each in dead_letters} == {TRIES - 1}
    assert "status 500" in {each.reason for each in dead_letters}


def workers(process) -> list[int]:
    """Return the processes of the asyncio example that crawl."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [int(each) for task in tasks for each in task.read_text().split()]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the processes are found in /proc")
def test_one_of_the_processes_is_killed(crawl, any_server):
    """It is started again, and others take over the pages that it had in flight: none is missing."""
    with Served(count=1000, delay=0.01) as site:
        process = crawl("crawl_asyncio", site, "--lease", "5")
        wait_until(lambda: len(site.fetched()) > 300, "the crawl does not begin")
        os.kill(workers(process)[0], signal.SIGKILL)
        assert finished(process) == "1,000 pages fetched; processes that were started again: 1"
        fetched = Counter(site.fetched())
        assert fetched.keys() == site.pages.keys()
        check_committed(site, any_server)
    # Once more: those that the killed process was fetching, or had fetched and not committed, at most one by each task.
    assert sum(fetched[path] > (TRIES if page.fails else 1) for path, page in site.pages.items()) <= TASKS


@pytest.mark.skipif(importlib.util.find_spec("crawlee") is None, reason="Crawlee is not installed")
def test_crawlee(crawl):
    """Each page gets into Crawlee's queue once, and a second run fetches none."""
    with Served() as site:
        last = finished(crawl("crawl_crawlee", site))
        broken = sum(page.status in {0, 404, 500} or leads_nowhere(site, path) for path, page in site.pages.items())
        assert last == f"{2000 - broken:,} pages fetched, {broken:,} failed"
        assert set(site.fetched()) == site.pages.keys()
        assert finished(crawl("crawl_crawlee", site)) == "0 pages fetched, 0 failed"


@pytest.mark.skipif(importlib.util.find_spec("crawlee") is None, reason="Crawlee is not installed")
def test_crawlee_and_capitals(crawl):
    """Pages that differ in capital letters alone are two for the filter, and Crawlee fetches both."""
    paths = ["/Product/ABC.html", "/product/abc.html", "/product/ABC.html"]
    first = Page("/index.html", links=(*paths, "/product/abc.html#part"))
    with Served(pages={each.path: each for each in (first, *map(Page, paths))}) as site:
        assert finished(crawl("crawl_crawlee", site)) == "4 pages fetched, 0 failed"
        assert sorted(site.fetched()) == sorted(site.pages)


def leads_nowhere(site, path) -> bool:
    """Whether a page redirects, at last, to itself or to a broken page; Crawlee follows redirects by itself."""
    passed = set()
    while (page := site.pages[path]).location is not None and path not in passed:
        passed.add(path)
        (path,) = page.leads_to()
    return bool(passed) and (path in passed or page.status in {0, 404, 500})
