"""Links of the site: pages outside ``docs/`` are found in it, and no link of the built site leads nowhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sphinx import addnodes
from sphinx.util import logging

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

__all__ = ["setup", "wrong_links"]

ROOT = Path(__file__).parents[2]

#: Pages of the repository's root, and the pages of the site that include them or stand for them.
PAGES = {"README": "index", "CHANGELOG": "changelog", "CONTRIBUTING": "contributing", "SECURITY": "security"}

_log = logging.getLogger(__name__)


def _lead_into_the_site(_: Sphinx, page: nodes.document) -> None:
    """Have links to a page of the root lead to the page of the site."""
    for link in page.findall(addnodes.pending_xref):
        path, _, fragment = link["reftarget"].partition("#")
        name = path.removeprefix(f"{ROOT}/").removesuffix(".md")  # a page that is included names its neighbours
        if name in PAGES:
            link["refdomain"], link["reftarget"] = "doc", PAGES[name]
            link["reftargetid"] = fragment or link.get("reftargetid")


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
            elif (name, tag) in {("href", "a"), ("href", "link"), ("src", "img"), ("src", "script")}:
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


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for link in wrong_links(Path(app.outdir).resolve()):
            _log.warning("a link of the built site leads nowhere: %s", link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Mend the links of pages that are read, and check those of the built site."""
    app.connect("doctree-read", _lead_into_the_site)
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True}
