"""A crawl of 600 local pages of 100 links by Scrapy, with each of several filters: how long does it take?

``python -m bench crawl`` starts a redis-server (or takes ``--redis URL``), serves the pages from a process of its own,
and crawls them with each filter in turn, in processes of their own. It needs the extra ``test``. ``--tree FOLDER``
(as often as wanted) measures the add-on of another checkout, too, and ``--addon`` leaves out all but it and Scrapy's
own filter.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from support.servers import Server
from support.site import Served

from bench import ROOT
from bench.runner import Row, turns

PAGES, LINKS = 600, 100

ADDON = {"ADDONS": {"urifilter_redis.scrapy.UriFilterAddon": 100}}
FILTERS: dict[str, dict[str, Any]] = {
    "Scrapy's own, in memory": {},
    "scrapy-redis's dupefilter": {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
    "ours, without near cache": ADDON | {"URIFILTER_NEAR_CACHE": 0},
    "ours": ADDON,
    "ours, with claims": ADDON | {"URIFILTER_CLAIM": True},
}
OWN, *_, COMPARED, CLAIMS = FILTERS


def write_pages(folder: Path) -> None:
    """Write the pages: each has the links to the next page and to 99 others."""
    for number in range(PAGES):
        numbers = [number + 1, *(number * 131 + each * 17 for each in range(2, LINKS + 1))]
        links = "\n".join(f'<a href="{each % PAGES}.html">{each}</a>' for each in numbers)
        (folder / f"{number}.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    (folder / "0.html").rename(folder / "index.html")
    (folder / "0.html").write_bytes((folder / "index.html").read_bytes())


#: A program that crawls with an add-on of any checkout, and prints seconds of wall time and of CPU.
CRAWL = """
import json, sys, time
import scrapy
from scrapy.crawler import CrawlerProcess

url, settings = sys.argv[1:]

class Follow(scrapy.Spider):
    name, start_urls = "follow", (url,)

    def parse(self, response):
        yield from response.follow_all(css="a")

process = CrawlerProcess({"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False} | json.loads(settings))
crawler = process.create_crawler(Follow)
process.crawl(crawler)
began = time.process_time()
process.start()
print(json.dumps([crawler.stats.get_value("elapsed_time_seconds"), time.process_time() - began]))
"""


def measure(site: Served, redis: str, tree: Path, settings: dict[str, Any]) -> tuple[float, float, int]:
    """Crawl the site once with the add-on of a tree.

    Returns:
        The seconds from the opening of the spider to its end, the seconds of CPU, and the number of scripts that the
        server has run.
    """
    server = Redis.from_url(redis)
    server.config_resetstat()
    names = {"URIFILTER_REDIS_URL": redis, "REDIS_URL": redis, "URIFILTER_NAME": uuid.uuid4().hex}
    load = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16, "DOWNLOAD_DELAY": 0}
    site.log.write_text("")
    command = [sys.executable, "-c", CRAWL, site.url, json.dumps(load | names | settings)]
    path = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | path).stdout
    wall, cpu = json.loads(told.splitlines()[-1])
    calls = server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    fetched = Counter(site.fetched())
    assert set(fetched.values()) == {1}, "a page was fetched twice"
    assert len(fetched) == PAGES + 1, "a page was not fetched"
    return wall, cpu, calls


def main(redis: str = "", rounds: int = 5, tree: Sequence[Path] = (), *, addon: bool = False) -> Iterator[str | Row]:
    """Measure all filters in turn.

    Options:
        redis: the server's URL, in the place of a redis-server of its own
        tree: other checkouts
        addon: only Scrapy's own filter, and the add-on
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not redis:
            server = Server("redis70")
            stack.callback(server.stop)
            redis = server.url
        write_pages(folder)
        site = stack.enter_context(Served(folder))
        few = (OWN, COMPARED, CLAIMS) if addon else FILTERS
        ways = {name: partial(measure, site, redis, ROOT, FILTERS[name]) for name in few}
        for each in tree:
            more = {name: partial(measure, site, redis, each.resolve(), FILTERS[name]) for name in (COMPARED, CLAIMS)}
            ways |= {f"{name}, {each}": way for name, way in more.items()}
        found = turns(ways, rounds)
    yield f"{PAGES} pages of {LINKS} links, {rounds} crawls each in turn; medians, and times {OWN}"
    medians = {name: [statistics.median(values) for values in zip(*each, strict=True)] for name, each in found.items()}
    for name, (wall, cpu, calls) in medians.items():
        walls = [each[0] for each in found[name]]
        row: Row = {"filter": name, "seconds": wall, "least": min(walls), "most": max(walls)}
        row |= {"times": wall / medians[OWN][0], "CPU, s": cpu, "times, CPU": cpu / medians[OWN][1]}
        yield row | {"scripts": calls}
