"""The links of a built site, and those that lead nowhere."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

#: Attributes and elements that lead somewhere.
LINKS = {("href", "a"), ("href", "link"), ("src", "img"), ("src", "script"), ("data", "object")}


class _Page(HTMLParser):
    """The links of a page, and the fragments that lead into it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fragments: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what leads from here, and where links may lead to."""
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.fragments.add(value or "")
            elif (name, tag) in LINKS:
                self.links.append(value or "")


def wrong_links(site: Path) -> list[str]:
    """Return the links of a built site that lead to no file or fragment of it, each with its page."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragments = pages[target].fragments if target in pages else {""}
            if not target.is_file() or unquote(parts.fragment) not in fragments:
                wrong.append(f"{path.relative_to(site)}: {link}")
    return wrong
