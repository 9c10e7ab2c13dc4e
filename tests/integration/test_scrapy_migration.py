"""A project moves in from scrapy-redis, by the commands and settings of the page about it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.site import Page, Served

ROOT = Path(__file__).parents[2]

GUIDE = (ROOT / "docs" / "how-to" / "from-scrapy-redis.md").read_text()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("scrapy_redis") is None, reason="scrapy-redis is not installed: pip install it"
    ),
]

SPIDERS = {"books": "127.0.0.1", "shops": "localhost"}

SETTINGS_BEFORE = """
BOT_NAME = "myproject"
SPIDER_MODULES = ["myproject.spiders"]
DOWNLOAD_DELAY = 0
SCHEDULER = "scrapy_redis.scheduler.Scheduler"
DUPEFILTER_CLASS = "scrapy_redis.dupefilter.RFPDupeFilter"
SCHEDULER_PERSIST = True
REDIS_URL = "redis://localhost:6379/0"
"""

SPIDER = """
import scrapy

class {name}(scrapy.Spider):
    name = "{name}"
    start_urls = ["{url}"]
    {more}

    def parse(self, response):
        yield from response.follow_all(css="a")
"""


def pages(count: int) -> dict[str, Page]:
    """Return pages that link on, back, and to the first; the first is linked to by others, as on most sites."""
    names = ["/index.html", *(f"/{number}.html" for number in range(1, count))]

    def links(number: int) -> tuple[str, ...]:
        return tuple(names[each % count] for each in (2 * number + 1, 2 * number + 2, number + 1, number // 2, 0))

    return {name: Page(name, links=links(number)) for number, name in enumerate(names)}


def block(text: str) -> str:
    """Return the block of code of the guide that has a text."""
    found = [each for each in re.findall(r"```\w+\n(.*?)```", GUIDE, re.DOTALL) if text in each]
    assert len(found) == 1, text
    return found[0]


def import_of(spider: str, *, again_after: bool) -> str:
    """Return the guide's command that imports the fingerprints of a spider."""
    if again_after:
        return block("--slices 11").replace("import spider", f"import {spider}").replace("spider:", f"{spider}:")
    return block("(filter shops)").splitlines()[0].removeprefix("$ ").replace("books films maps news shops", spider)


class Project:
    """A project with two spiders, in a folder; the guide's server is ``redis``."""

    def __init__(self, folder: Path, redis: str, site: Served) -> None:
        self._folder, self._redis, self._site = folder, redis, site
        (folder / "myproject" / "spiders").mkdir(parents=True)
        for each in ("", "spiders/"):
            (folder / "myproject" / each / "__init__.py").touch()

    def write(self, path: str, text: str) -> None:
        text = text.replace("redis://localhost:6379/0", self._redis)
        (self._folder / "myproject" / path).write_text(text)

    def write_spiders(self, custom: str = "") -> None:
        for name, host in SPIDERS.items():
            more = custom.replace("books", name)
            self.write(f"spiders/{name}.py", SPIDER.format(name=name, url=self._site.at(host), more=more))

    def run(self, *command: str) -> str:
        """Run a command in the project's folder; return what it says."""
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        more = {"SCRAPY_SETTINGS_MODULE": "myproject.settings", "URIFILTER_REDIS_URL": self._redis, "PATH": tools}
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=os.environ | more | {"PYTHONPATH": os.pathsep.join([str(self._folder), os.environ["PYTHONPATH"]])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    def crawl(self, spider: str, *options: str) -> Counter[str]:
        """Run a spider; return how often it fetched each page."""
        before = len(self._site.fetched(SPIDERS[spider]))
        said = self.run(sys.executable, "-m", "scrapy", "crawl", spider, *options)
        assert "Traceback" not in said, said[-3000:]
        return Counter(self._site.fetched(SPIDERS[spider])[before:])


@pytest.mark.parametrize("again_after", [False, True])
def test_two_spiders_move_in(any_server, admin, tmp_path, again_after):
    """Of two spiders that were stopped half-way, none but the start page is fetched again, and no page is missed."""
    with Served(pages=pages(60)) as site:
        project = Project(tmp_path, any_server.url, site)
        project.write("settings.py", SETTINGS_BEFORE)
        project.write_spiders()
        before = {spider: project.crawl(spider, "-s", "CLOSESPIDER_PAGECOUNT=25") for spider in SPIDERS}
        assert all(25 <= len(fetched) < 50 for fetched in before.values())
        assert all(admin.scard(f"{spider}:dupefilter") >= 50 for spider in SPIDERS)

        for spider in SPIDERS:
            project.run("sh", "-c", import_of(spider, again_after=again_after))

        settings = block('URIFILTER_NAME = "spider"').replace('URIFILTER_NAME = "spider"\n', "")
        settings += 'URIFILTER_AGAIN_AFTER = "30d"\n' if again_after else ""
        project.write("settings.py", SETTINGS_BEFORE + settings)
        project.write("fingerprint.py", block("def of_scrapy_redis"))
        project.write_spiders(block("class Books").splitlines()[2].strip())
        after = {spider: project.crawl(spider) for spider in SPIDERS}
        for spider in SPIDERS:
            assert before[spider].keys() | after[spider].keys() == site.pages.keys()
            assert before[spider].keys() & after[spider].keys() == {"/index.html"}
            assert set(after[spider].values()) == {1}
        assert [project.crawl(spider) for spider in SPIDERS] == [Counter({"/index.html": 1})] * 2
