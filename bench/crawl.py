"""A crawl of 600 local pages of 100 links by Scrapy, with each of several filters: how long does it take?

``python bench/crawl.py`` starts a redis-server (or takes ``--redis URL``), serves the pages from a process of its own,
and crawls them with each filter in turn, in processes of their own. It needs the extra ``test``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.servers import Server  # noqa: E402
from support.site import Served  # noqa: E402

PAGES, LINKS = 600, 100

ALONE = {"DUPEFILTER_CLASS": "urifilter_redis.scrapy.UriDupeFilter"}
ADDON = {"ADDONS": {"urifilter_redis.scrapy.UriFilterAddon": 100}}
FILTERS = {
    "Scrapy's own, in memory": {},
    "scrapy-redis's dupefilter": {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
    "ours, dupefilter alone": ALONE,
    "ours, with middleware": ADDON | {"URIFILTER_NEAR_CACHE": 0},
    "ours, with middleware and near cache": ADDON,
}


def write_pages(folder: Path) -> None:
    """Write the pages: each has the links to the next page and to 99 others."""
    for number in range(PAGES):
        numbers = [number + 1, *(number * 131 + each * 17 for each in range(2, LINKS + 1))]
        links = "\n".join(f'<a href="{each % PAGES}.html">{each}</a>' for each in numbers)
        (folder / f"{number}.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    (folder / "0.html").rename(folder / "index.html")
    (folder / "0.html").write_bytes((folder / "index.html").read_bytes())


def crawl(url: str, settings: str) -> None:
    """Crawl in this process; print the seconds and the stats."""
    import scrapy
    from scrapy.crawler import CrawlerProcess

    class Follow(scrapy.Spider):
        name, start_urls = "follow", (url,)

        def parse(self, response):  # noqa: ANN001, ANN202
            yield from response.follow_all(css="a")

    process = CrawlerProcess({"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False} | json.loads(settings))
    crawler = process.create_crawler(Follow)
    process.crawl(crawler)
    process.start()
    stats = crawler.stats.get_stats()
    print(json.dumps({name: stats.get(name) for name in ("elapsed_time_seconds", "response_received_count")}))


def measure(site: Served, redis: str, settings: dict) -> float:
    """Crawl the site once; return the seconds from the opening of the spider to its end."""
    names = {"URIFILTER_REDIS_URL": redis, "REDIS_URL": redis, "URIFILTER_NAME": uuid.uuid4().hex}
    load = {"CONCURRENT_REQUESTS": 16, "CONCURRENT_REQUESTS_PER_DOMAIN": 16, "DOWNLOAD_DELAY": 0}
    site.log.write_text("")
    command = [sys.executable, __file__, "--crawl", site.url, json.dumps(load | names | settings)]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    fetched = Counter(site.fetched())
    assert set(fetched.values()) == {1}, "a page was fetched twice"
    assert len(fetched) == PAGES + 1, "a page was not fetched"
    return done["elapsed_time_seconds"]


def main() -> None:
    """Measure all filters in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", help="the server's URL; None: a redis-server of its own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--crawl", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.crawl:
        crawl(*given.crawl)
        return
    server = None if given.redis else Server("redis70")
    seconds: dict[str, list[float]] = {name: [] for name in FILTERS}
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_pages(Path(folder))
            with Served(Path(folder)) as site:
                for _ in range(given.rounds):
                    for name, settings in FILTERS.items():
                        seconds[name].append(measure(site, given.redis or server.url, settings))
    finally:
        if server is not None:
            server.stop()
    own = statistics.median(seconds["Scrapy's own, in memory"])
    print(f"{PAGES} pages of {LINKS} links, {given.rounds} crawls each in turn; seconds of a crawl\n")
    print("| filter | median | least | most | times the in-memory filter |\n| --- | --- | --- | --- | --- |")
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"| {name} | {median:.1f} | {min(each):.1f} | {max(each):.1f} | {median / own:.2f} |")


if __name__ == "__main__":
    main()
