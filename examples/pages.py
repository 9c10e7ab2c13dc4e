"""The links of a page, for the examples that crawl."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import urldefrag, urljoin, urlsplit

if TYPE_CHECKING:
    import httpx


class _Hrefs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down where a link leads."""
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def links_of(page: httpx.Response) -> list[str]:
    """Return the addresses on the same site to which a page leads: its links, or the page that it redirects to."""
    hrefs = _Hrefs()
    if page.has_redirect_location:
        hrefs.found.append(page.headers["location"])
    elif page.headers.get("content-type", "").startswith("text/html"):
        hrefs.feed(page.text)
    links = [urldefrag(urljoin(str(page.url), each)).url for each in hrefs.found]
    return [each for each in links if urlsplit(each)[:2] == (page.url.scheme, page.url.netloc.decode())]
