"""A spider that fetches each page of a site once, however many of it run at the same time.

It needs the extra ``scrapy``: ``pip install '.[scrapy]'`` in the checkout. Run it in this folder, in several terminals,
each from another page. ``-o`` appends to the file, which ``-O`` would replace at each run:

    SCRAPY_SETTINGS_MODULE=settings python -m scrapy crawl site -a url=https://docs.python.org/3/ -o pages.jsonl
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response


class SiteSpider(Spider):
    """Follows all links of a site."""

    name = "site"

    def __init__(self, url: str, **more: object) -> None:
        super().__init__(**more)
        self.url, self.allowed_domains = url, [urlsplit(url).hostname]

    async def start(self) -> AsyncIterator[Any]:
        """Begin with one page; it is fetched even if another process has."""
        yield Request(self.url)

    def parse(self, response: Response) -> Iterator[Any]:
        """Tell of a page, and follow its links."""
        if isinstance(response, HtmlResponse):
            yield {"url": response.url, "title": response.css("title::text").get()}
            yield from response.follow_all(css="a[href]:not([href^=mailto])")
