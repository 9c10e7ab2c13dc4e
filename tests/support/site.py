"""Sites to crawl: a generated one, or a folder of HTML files, served in a process of their own.

``with Served() as site`` serves 2,000 pages with redirects, loops of redirects, relative links and broken pages on
loopback. ``site.pages`` has each page, ``site.fetched()`` the path of each request that was answered, in order. The
crawler is judged by these two. ``python site.py OPTIONS`` serves one by hand; see ``main``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Self
from urllib.parse import urljoin, urlsplit

#: Debian's package python3.11-doc: a real site of some 500 linked pages.
PYTHON_DOC = Path("/usr/share/doc/python3.11/html")


@dataclass(frozen=True)
class Page:
    """A page: its status (0: the server hangs up), the address it redirects to, and its links as they are written.

    ``file`` or ``text`` is its body instead. With ``cookie`` it redirects to those without one, and sets it.
    Those ``in_circle`` redirect without end.
    """

    path: str
    status: int = 200
    location: str | None = None
    links: tuple[str, ...] = ()
    file: Path | None = None
    text: str | None = None
    cookie: bool = False
    in_circle: bool = False

    @property
    def fails(self) -> bool:
        """Whether its download fails, however often it is tried."""
        return self.status in {0, 500}

    @property
    def has_failed(self) -> bool:
        """Whether it has failed for Scrapy, which tries it again."""
        return self.fails or self.in_circle

    def body(self) -> bytes:
        if self.file is not None:
            return self.file.read_bytes()
        if self.text is not None:
            return self.text.encode()
        links = "".join(f'<li><a href="{each}">to {each}</a></li>\n' for each in self.links)
        head = f"<!DOCTYPE html><html><head><title>{self.path}</title></head>"
        return f"{head}<body><ul>\n{links}</ul></body></html>".encode()

    def leads_to(self) -> set[str]:
        """The paths that a crawler of this site finds in the answer."""
        found = (self.location,) if self.location else self.links
        joined = (urlsplit(urljoin(f"http://site{self.path}", each)) for each in found)
        return {each.path for each in joined if each.hostname == "site"}


def generated(count: int = 2000) -> dict[str, Page]:
    """Return ``count`` pages by their paths; all can be reached from ``/0.html``."""
    return {page.path: page for page in (_page(number, count) for number in range(count))}


def _page(number: int, count: int) -> Page:
    path = _path(number)
    if number % 500 in {20, 21}:  # a loop: each redirects to the other
        return Page(path, 302, _path(number + 1 if number % 500 == 20 else number - 1), in_circle=True)
    if number % 50 in {7, 8} and number + 1 < count:  # a chain of two redirects, the first of them relative
        following = _path(number + 1)
        return Page(path, 301, following.rpartition("/")[2] if _folder(number) == _folder(number + 1) else following)
    status = {33: 404, 66: 500, 99: 0}.get(number % 100, 200)
    return Page(path, status, links=_links(number, count) if status == 200 else ())


def _links(number: int, count: int) -> tuple[str, ...]:
    """Links on (so that every page is found), back, to itself and to another site, written in different ways."""
    on = [each for each in (*range(4 * number + 1, 4 * number + 5), *range(number + 1, number + 5)) if each < count]
    back = [number // 2, 0, (number * 7919) % count, number]
    links = [_path(each) for each in on + back]
    here = _folder(number)
    links = [each.removeprefix(f"/{here}/") if each.startswith(f"/{here}/") else f"..{each}" for each in links]
    return (*links, _path(number // 3), f"{_path(number)}#part", "http://offsite.invalid/", "mailto:nobody@example.com")


def _folder(number: int) -> str:
    return f"part{number % 10}"


def _path(number: int) -> str:
    return f"/{_folder(number)}/{number}.html"


START = _path(0)


def star(count: int, *links: str, more: tuple[Page, ...] = ()) -> dict[str, Page]:
    """Return a first page that links to ``count`` pages, each of which has the same links; and more pages."""
    leaves = [Page(f"/leaf{number}.html", links=links) for number in range(count)]
    first = Page("/index.html", links=tuple(each.path for each in leaves))
    return {each.path: each for each in (first, *leaves, *more)}


def of_folder(folder: Path) -> dict[str, Page]:
    """Return the pages of a folder of HTML files by their paths; a link to a missing file is a page with status 404."""
    pages, ahead = {}, ["/index.html"]
    while ahead:
        path = ahead.pop()
        if path in pages:
            continue
        file = folder / path.lstrip("/")
        pages[path] = page = Page(path, 200, None, _found(file), file) if file.is_file() else Page(path, 404)
        ahead += page.leads_to()
    return pages


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _found(file: Path) -> tuple[str, ...]:
    if file.suffix != ".html":
        return ()
    parser = _Links()
    parser.feed(file.read_text(errors="replace"))
    return tuple(parser.links)


class Served:
    """A site in a process of its own, on 127.0.0.1 and localhost.

    Args:
        folder: serve these files; None: the generated site.
        pages: serve these pages, of which /index.html is the first.
        count: the number of generated pages.
        mended: pages that fail answer status 200 instead.
        delay: seconds before each answer.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        pages: dict[str, Page] | None = None,
        count: int = 2000,
        mended: bool = False,
        delay: float = 0,
        port: int = 0,
    ) -> None:
        self.pages = pages or (generated(count) if folder is None else of_folder(folder))
        self.start = START if folder is None and pages is None else "/index.html"
        self._options = [f"--count={count}", f"--delay={delay}", f"--port={port}", *(["--mended"] if mended else [])]
        if folder is not None:
            self._options.append(f"--folder={folder}")
        if pages is not None:
            self._options.append(f"--pages={json.dumps([asdict(each) for each in pages.values()])}")

    def __enter__(self) -> Self:
        with tempfile.NamedTemporaryFile(prefix="site-", suffix=".log", delete=False) as log:
            self.log = Path(log.name)
        command = [sys.executable, __file__, *self._options, f"--log={self.log}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self.log.unlink()

    @property
    def url(self) -> str:
        """The address of the page from which all are found."""
        return self.at("127.0.0.1")

    def at(self, host: str, path: str | None = None) -> str:
        """The address of a page under a host's name: 127.0.0.1 or localhost; None: the page to start from."""
        return f"http://{host}:{self.port}{self.start if path is None else path}"

    def fetched(self, host: str | None = None) -> list[str]:
        """The path of each request so far, in order; of all hosts, or of one.

        Before it stands a method other than GET, and behind it the body and the cookies.
        """
        lines = (line.split(" ", 1) for line in self.log.read_text().splitlines())
        return [path for name, path in lines if host is None or name.partition(":")[0] == host]

    def counts(self) -> Counter[str]:
        """How often each path was requested; a page that hangs up once.

        Twisted asks for such a page once more by itself if it had used the connection before.
        """
        hang_up = {path for path, page in self.pages.items() if page.status == 0}
        return Counter(each for each in self.fetched() if each not in hang_up) + Counter(hang_up & {*self.fetched()})


async def _serve(pages: dict[str, Page], log: int, delay: float, port: int, *, mended: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                method, path = lines[0].split(" ")[0], urlsplit(lines[0].split(" ")[1]).path
                fields = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines[1:])}
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                more = [each for each in (body.decode("latin-1"), fields.get("cookie")) if each]
                told = " ".join([*([method] if method != "GET" else []), path, *more])
                os.write(log, f"{fields.get('host', '')} {told}\n".encode())
                if delay:
                    await asyncio.sleep(delay)
                page = pages.get(path, Page(path, 404))
                if page.fails and mended:
                    page = Page(path)
                if page.cookie and "cookie" in fields:
                    page = replace(page, status=200, location=None)
                if page.status == 0:
                    break
                answered = _answer(page)
                writer.write(answered if method != "HEAD" else answered[: answered.index(b"\r\n\r\n") + 4])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is done
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def _answer(page: Page) -> bytes:
    body = page.body()
    location = f"Location: {page.location}\r\n" if page.location else ""
    location += f"Set-Cookie: was=here; Path={page.path}\r\n" if page.cookie else ""
    suffix = page.file.suffix if page.file else Path(page.path).suffix
    kind = {".xml": "application/xml", ".txt": "text/plain; charset=utf-8"}.get(suffix, "text/html; charset=utf-8")
    if page.file and suffix != ".html":
        kind = "text/plain; charset=utf-8"
    head = f"HTTP/1.1 {page.status} Said\r\nContent-Type: {kind}\r\n{location}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a site to crawl; the port is the first line of the output.")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pages", type=json.loads)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--mended", action="store_true")
    given = parser.parse_args()
    pages = generated(given.count) if given.folder is None else of_folder(given.folder)
    if given.pages is not None:
        pages = {each["path"]: Page(**each) for each in given.pages}
    log = os.open(given.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.run(_serve(pages, log, given.delay, given.port, mended=given.mended))


if __name__ == "__main__":
    main()
