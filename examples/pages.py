"""The links of a page, for the examples that crawl."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

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
    links = [_joined(str(page.url), each) for each in hrefs.found]
    return [each for each in links if urlsplit(each)[:2] == (page.url.scheme, page.url.netloc.decode())]


def _joined(base: str, href: str) -> str:
    """Return the address of a link; "" if it is broken, because one page must not end the crawl."""
    try:
        url = urldefrag(urljoin(base, href)).url
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        return ""
    return url
