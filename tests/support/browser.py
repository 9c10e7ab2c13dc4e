"""A headless Chromium, and tabs of it that note all that goes wrong in them."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")

#: It is root's in containers, has no graphics card, and asks nobody but the page's origin.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

#: Milliseconds that anything on a page may take; only reached when something is wrong.
PATIENCE = 60_000

DESKTOP = {"width": 1280, "height": 900}


def _give_up(text: str) -> None:
    """Skip, and in CI fail."""
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def executable() -> str | None:
    """Return the program."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """Run a browser. While it runs asyncio cannot be used in this thread."""
    try:
        from playwright.sync_api import expect as expectations
        from playwright.sync_api import sync_playwright
    except ImportError:
        _give_up("playwright is missing: pip install playwright")
    program = executable()
    if program is None:
        _give_up("Chromium is missing: apt-get install chromium")
    expectations.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


def expect(shown: Any) -> Any:
    """Return playwright's expectations of something on a page, which wait."""
    from playwright.sync_api import expect as expect_of

    return expect_of(shown)


def axe() -> Callable[[Page], list[str]]:
    """Return a function that has axe-core examine a page; it returns what is to be mended."""
    try:
        from axe_core_python.sync_playwright import Axe
    except ImportError:
        _give_up("axe-core is missing: pip install axe-core-python")
    found = Axe()

    def examine(page: Page) -> list[str]:
        violations = found.run(page)["violations"]
        return [f"{each['id']}: {each['help']} {[node['target'] for node in each['nodes']]}" for each in violations]

    return examine


class Tab:
    """A page in a session of its own; a context manager that fails when something went wrong.

    Wrong is: an error on the console or in a script, a request that failed, a request to another origin.

    Attributes:
        context: playwright's session, without anybody else's cookies or storage.
        page: in it.
        requests: the methods and paths that it asked for.
    """

    def __init__(self, browser: Browser, url: str, **settings: Any) -> None:
        self._url, self._origin = url, urlsplit(url)[:2]
        self.context = browser.new_context(**({"viewport": DESKTOP} | settings))
        self.context.set_default_timeout(PATIENCE)
        self._problems: list[str] = []
        self._allowed: list[str] = []
        self.requests: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self._problems.append(f"uncaught: {error}"))
        self.page.on("request", self._note_request)
        self.page.on("requestfailed", lambda request: self._problems.append(f"failed: {request.url} {request.failure}"))

    def open(self) -> Page:
        """Go to the page, and return it."""
        self.page.goto(self._url)
        return self.page

    def allow(self, *texts: str) -> None:
        """Take problems with these texts for right."""
        self._allowed += texts

    def problems(self) -> list[str]:
        """Return what went wrong so far."""
        return [each for each in self._problems if not any(text in each for text in self._allowed)]

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        problems = self.problems()
        self.context.close()
        assert problems == [], problems

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._problems.append(f"console: {message.text} {message.location['url']}")

    def _note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        self.requests.append(f"{request.method} {parts.path}")
        if parts[:2] != self._origin and parts.scheme != "data":
            self._problems.append(f"another origin: {request.url}")
