"""Links of the site: pages outside ``docs/`` are found in it, and no link of the built site leads nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from links import wrong_links
from sphinx import addnodes
from sphinx.util import logging

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

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


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for link in wrong_links(Path(app.outdir).resolve()):
            _log.warning("a link of the built site leads nowhere: %s", link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Mend the links of pages that are read, and check those of the built site."""
    app.connect("doctree-read", _lead_into_the_site)
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True}
