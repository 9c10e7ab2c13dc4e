"""A crawl of 600 local pages of 100 links by Scrapy, with each of several filters: how long does it take?

``python bench/crawl.py`` starts a redis-server (or takes ``--redis URL``), serves the pages from a process of its own,
and crawls them with each filter in turn, in processes of their own. It needs the extra ``test``. ``--tree FOLDER``
(as often as wanted) measures the add-on of another checkout, too, and ``--addon`` leaves out all but it and Scrapy's
own filter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis

if TYPE_CHECKING:
    from support.site import Served

ROOT = Path(__file__).resolve().parents[1]

PAGES, LINKS = 600, 100

ADDON = {"ADDONS": {"urifilter_redis.scrapy.UriFilterAddon": 100}}
FILTERS = {
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


def crawl(url: str, settings: str) -> None:
    """Crawl in this process; print seconds of wall time and of CPU."""
    import scrapy
    from scrapy.crawler import CrawlerProcess

    class Follow(scrapy.Spider):
        name, start_urls = "follow", (url,)

        def parse(self, response):  # noqa: ANN001, ANN202
            yield from response.follow_all(css="a")

    process = CrawlerProcess({"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False} | json.loads(settings))
    crawler = process.create_crawler(Follow)
    process.crawl(crawler)
    began = time.process_time()
    process.start()
    print(json.dumps([crawler.stats.get_value("elapsed_time_seconds"), time.process_time() - began]))


def measure(site: Served, redis: str, tree: Path, settings: dict) -> tuple[float, float, int]:
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
    command = [sys.executable, __file__, "--crawl", site.url, json.dumps(load | names | settings)]
    path = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | path).stdout
    wall, cpu = json.loads(told.splitlines()[-1])
    calls = server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    fetched = Counter(site.fetched())
    assert set(fetched.values()) == {1}, "a page was fetched twice"
    assert len(fetched) == PAGES + 1, "a page was not fetched"
    return wall, cpu, calls


def main() -> None:
    """Measure all filters in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", help="the server's URL; None: a redis-server of its own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout")
    parser.add_argument("--addon", action="store_true", help="only Scrapy's own filter, and the add-on")
    parser.add_argument("--crawl", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.crawl:
        crawl(*given.crawl)
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from support.servers import Server
    from support.site import Served

    few = (OWN, COMPARED, CLAIMS) if given.addon else FILTERS
    each_way = {name: (ROOT, FILTERS[name]) for name in few}
    each_way |= {
        f"{name}, {tree}": (tree.resolve(), FILTERS[name]) for tree in given.tree for name in (COMPARED, CLAIMS)
    }
    server = None if given.redis else Server("redis70")
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in each_way}
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_pages(Path(folder))
            with Served(Path(folder)) as site:
                for _ in range(given.rounds):
                    for name, how in each_way.items():
                        found[name].append(measure(site, given.redis or server.url, *how))
    finally:
        if server is not None:
            server.stop()
    print(f"{PAGES} pages of {LINKS} links, {given.rounds} crawls each in turn; medians, and times {OWN}\n")
    print("| filter | seconds | least | most | times | CPU, s | times | scripts |\n|" + " --- |" * 8)
    medians = {name: [statistics.median(values) for values in zip(*each, strict=True)] for name, each in found.items()}
    for name, (wall, cpu, calls) in medians.items():
        walls = [each[0] for each in found[name]]
        print(
            f"| {name} | {wall:.1f} | {min(walls):.1f} | {max(walls):.1f} | {wall / medians[OWN][0]:.2f} "
            f"| {cpu:.1f} | {cpu / medians[OWN][1]:.2f} | {calls:.0f} |"
        )


if __name__ == "__main__":
    main()
