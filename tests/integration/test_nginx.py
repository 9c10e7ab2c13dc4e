"""The service behind nginx, which is configured as the example says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.browser import Tab, expect, launched
from support.forwarder import Authority, Forwarder
from support.page import sign_in, visit
from support.pages import ROOT
from support.servers import free_port, wait_until
from support.service import Service, known

from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPIClient, FilterAPIError

#: Where programs for the administrator alone are.
_PLACES = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])

_AROUND = """
pid {folder}/pid;
error_log {folder}/error.log;
daemon off;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {shown}
}}
"""

TOKEN = "urifilter_0123456789012345678901234567890123456789012"

pytestmark = pytest.mark.slow


class Nginx:
    """nginx with the example's configuration, before a service of another port; a context manager."""

    def __init__(self, folder: Path, service: int) -> None:
        program = shutil.which("nginx", path=_PLACES)
        if program is None:
            pytest.skip("nginx is missing: apt-get install nginx-light")
        self.authority, self.port, self._folder = Authority(folder), free_port(), folder
        self.url = f"https://localhost:{self.port}/seen"
        shown = (ROOT / "examples" / "nginx.conf").read_text()
        for said, own in (
            ("server 127.0.0.1:8000;", f"server 127.0.0.1:{service};"),
            ("listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;"),
            ("/etc/ssl/seen.example.com.pem", f"{folder}/cert.pem"),
            ("/etc/ssl/private/seen.example.com.key", f"{folder}/cert.key"),
        ):
            assert said in shown
            shown = shown.replace(said, own)
        (folder / "nginx.conf").write_text(_AROUND.format(folder=folder, shown=shown))
        self._command = [program, "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]

    def reload(self) -> None:
        """Read the configuration again: new processes take over, and the old ones finish."""
        subprocess.run([*self._command, "-s", "reload"], check=True)

    @property
    def trust(self) -> str:
        """The file with which the SDK trusts it."""
        return str(self.authority.file)

    def __enter__(self):
        self._process = subprocess.Popen(self._command)
        try:
            wait_until((self._folder / "pid").exists, "nginx does not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def served(server, *arguments: object):
    """Run a service with a token."""
    with Service(server.url, *arguments, settings=known("all", TOKEN, "write")) as service:
        yield service


def test_the_page_below_the_prefix(any_server, news, tmp_path):
    """A filter's page survives a reload; figures, answers, metrics and the API's description come."""
    with (
        served(any_server) as service,
        Nginx(tmp_path, service.port) as nginx,
        launched() as browser,
        Tab(browser, f"{nginx.url}/", ignore_https_errors=True) as tab,
    ):
        tab.allow("another origin: blob:")
        page = sign_in(tab, TOKEN)
        visit(page, "news")
        page.reload()
        expect(page.locator("#slices tbody tr")).to_have_count(1)
        page.get_by_label("URIs, one a line").fill("https://example.com/")
        page.get_by_role("button", name="Insert").click()
        expect(page.locator("#outcome")).to_have_text("1 of 1 new and inserted into news")
        page.get_by_role("link", name="Metrics").click()
        page.wait_for_url(re.compile("^blob:"))
        page.go_back()
        page.get_by_role("link", name="API").click()
        expect(page.locator("#manual")).to_contain_text("/v1/filters/{filter}/insert")
        operation = page.locator("#operations-service-access")  # it wants the token, which is for this service alone
        operation.get_by_role("button").first.click()
        operation.get_by_role("button", name="Try it out").click()
        operation.get_by_role("button", name="Execute").click()
        expect(operation.locator(".request-url")).to_contain_text(f"{nginx.url}/v1/access")
        expect(operation.locator(".live-responses-table").first).to_contain_text('"last_used"')


def test_it_keeps_connections(any_server, news, tmp_path):
    """Requests over TLS below the prefix take one connection to nginx, and nginx one to the service."""
    with (
        served(any_server) as service,
        Forwarder(service.port) as inner,
        Nginx(tmp_path, inner.port) as nginx,
        Forwarder(nginx.port) as outer,
        FilterAPIClient(f"https://localhost:{outer.port}/seen", access_token=TOKEN, verify=nginx.trust) as api,
    ):
        assert api.unique("news", ["a", "b", "a"]) == ["a", "b"]
        for number in range(50):
            assert api.unique("news", ["a", number]) == [number]
        assert (outer.count, inner.count) == (1, 1)
        with pytest.raises(FilterAPIError) as raised:
            api.unique("news", ["x" * 5_000_000])
        assert raised.value.error_code in {"item_too_long", "bad_response"}


def test_all_paths_are_below_the_prefix(any_server, news, tmp_path):
    """The page with all its parts, health and metrics; other paths of the site are nginx's."""
    with served(any_server) as service, Nginx(tmp_path, service.port) as nginx:
        client = httpx.Client(verify=nginx.authority.trusting(), headers={"Authorization": f"Bearer {TOKEN}"})
        with client:
            page = client.get(f"{nginx.url}/")
            parts = re.findall(r'(?:href|src)="([^"#:]+\.(?:css|js|svg|png))"', page.text)
            assert len(parts) >= 2
            for path in ("", *parts, "healthz", "readyz", "metrics", "v1/filters"):
                assert client.get(f"{nginx.url}/{path}").status_code == 200, path
            assert client.get(f"{nginx.url.removesuffix('seen')}healthz").status_code == 404
            request = {"json": {"filter_typeid": "news", "URI_list": ["a"]}, "headers": {"Idempotency-Key": "once"}}
            answers = [client.post(f"{nginx.url}{service.path}", **request).json()["unique"] for _ in range(3)]
            assert answers == [1, 1, 1]  # a repeat gets the first answer
            assert client.get(f"{nginx.url}/v1/filters", headers={"Authorization": "Bearer x"}).status_code == 401


def test_claims_of_many_tasks(any_server, news, tmp_path):
    """The awaited client claims and commits through it, many at once."""

    async def crawl(address: str, verify: str) -> int:
        async with AsyncFilterAPIClient(address, access_token=TOKEN, verify=verify) as api, api.claims("news") as mine:
            claimed = await asyncio.gather(*(mine.unique([f"page-{number % 40}"]) for number in range(80)))
            final = await mine.commit([uri for some in claimed for uri in some])
            return sum(final)

    with served(any_server) as service, Nginx(tmp_path, service.port) as nginx:
        assert asyncio.run(crawl(nginx.url, nginx.trust)) == 40


def test_nothing_is_lost_in_reloads_and_restarts(any_server, news, tmp_path):
    """Nginx is reloaded, and the service is killed and started again, under requests: each item is new once."""
    port = free_port()
    with Nginx(tmp_path, port) as nginx, FilterAPIClient(nginx.url, access_token=TOKEN, verify=nginx.trust) as api:
        done = threading.Semaphore(0)

        def ask(number: int) -> list[int]:
            found = api.unique("news", [number // 2])
            done.release()
            return found

        def wait_for(count: int) -> None:
            for _ in range(count):
                assert done.acquire(timeout=120)

        with ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as stack:
            first = stack.enter_context(served(any_server, "--port", port))
            asked = [pool.submit(ask, number) for number in range(300)]
            wait_for(50)
            nginx.reload()
            wait_for(50)
            first.kill()
            stack.enter_context(served(any_server, "--port", port))
            wait_for(50)
            nginx.reload()
            found = [item for each in asked for item in each.result()]
        assert sorted(found) == list(range(150))
        assert news.info().inserted == 150
