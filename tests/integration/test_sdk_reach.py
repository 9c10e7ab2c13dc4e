"""How the SDK reaches the service: over TLS of a private CA, through a proxy, and how soon it gives up."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

import pytest
from support.forwarder import Authority, Forwarder
from support.service import Service

from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPI, FilterAPIClient, FilterAPIError, Timeouts

pytestmark = pytest.mark.slow


@pytest.fixture
def port(service, news):
    """The service's, with a filter that holds nothing."""
    return service.port


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def behind_tls(port, authority):
    with Forwarder(port, authority.context) as forwarder:
        yield forwarder


def unique(items, *arguments, **options) -> list:
    """Ask by one call, by the blocking client and by the awaited one, which see the same items."""

    async def ask():
        async with AsyncFilterAPIClient(*arguments, **options) as api:
            return await api.ages("news", items)

    new = FilterAPI("news", items, url=arguments[0], **options)["URI_list_unique"]
    with FilterAPIClient(*arguments, **options) as api:
        assert api.ages("news", items) == [1] * len(items)
    assert asyncio.run(ask()) == [1] * len(items)
    return new


@pytest.mark.parametrize("how", ["path", "text", "context", "variable"])
def test_a_private_ca(behind_tls, authority, how, monkeypatch):
    """Its certificates are trusted by ``verify=``, a path or a context, or as the environment says."""
    if how == "variable":
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert unique(["a"], behind_tls.url) == ["a"]
        return
    verify = {"path": authority.file, "text": str(authority.file)}.get(how)
    verify = verify or ssl.create_default_context(cafile=authority.file)
    assert unique(["a", "b"], behind_tls.url, verify=verify) == ["a", "b"]
    assert behind_tls.count == 3


def test_a_certificate_that_is_not_trusted(behind_tls, authority, tmp_path, monkeypatch):
    """It is told at once, with what to do; ``verify=`` beats the environment."""
    other = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    for options in ({"verify": other.file}, {"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}):
        with pytest.raises(FilterAPIError, match="verify= or SSL_CERT_FILE") as refused:
            unique(["a"], behind_tls.url, **options)
        assert (refused.value.error_code, refused.value.status) == ("unreachable", None)
    assert behind_tls.count == 2


def test_certificates_that_are_none(tmp_path, monkeypatch):
    """They are told when the client is made."""
    (tmp_path / "no.pem").write_text("no")
    for client in (FilterAPIClient, AsyncFilterAPIClient):
        for verify in (tmp_path / "no.pem", tmp_path / "nowhere.pem", 5):
            with pytest.raises(ValueError, match="verify is a file or folder of CA certificates"):
                client("https://localhost:1", verify=verify)
        with pytest.raises(ValueError, match="proxy is a URL such as"):
            client("https://localhost:1", proxy="nonsense")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "no.pem"))
    with pytest.raises(ValueError, match=r"no\.pem"):
        FilterAPIClient("https://localhost:1")


def test_a_proxy(port, monkeypatch):
    """Requests go through the one that is named, and never through the environment's, which is for crawling."""
    with Forwarder(port) as proxy, Forwarder(9) as other:
        monkeypatch.setenv("HTTP_PROXY", other.url)
        monkeypatch.setenv("ALL_PROXY", other.url)
        assert unique(["a"], "http://localhost:9", proxy=proxy.url) == ["a"]
        assert proxy.count == 3
        assert unique(["a"], f"http://localhost:{port}") == []
        assert (proxy.count, other.count) == (3, 0)


def test_a_mistyped_port():
    """It is told within the patience of a first contact, which the caller may set; by default some seconds."""
    assert Timeouts().first < 10 < Timeouts().total
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for timeouts in (Timeouts(first=0.1), Timeouts(total=0.1)):
            began = time.monotonic()
            with pytest.raises(FilterAPIError, match="gave up after 0.1 s") as refused:
                FilterAPI("news", ["a"], url=url, timeouts=timeouts)
            assert refused.value.error_code == "unreachable"
            with pytest.raises(FilterAPIError, match="gave up after 0.1 s"):
                asyncio.run(AsyncFilterAPIClient(url, timeouts=timeouts).ages("news", ["a"]))
            assert time.monotonic() - began < Timeouts().total


def test_a_service_that_is_started_again(any_server, news):
    """Once it has answered it is waited for, for longer than for one that never did."""
    with Service(any_server.url) as first, FilterAPIClient(first.url, timeouts=Timeouts(first=0.0)) as api:
        assert api.unique("news", ["a"]) == ["a"]
        first.stop()
        lost = asyncio.run(again(api, any_server.url, first.port))
    assert lost == ["b"]


async def again(api, url, port):
    asked = asyncio.create_task(asyncio.to_thread(api.unique, "news", ["a", "b"]))
    await asyncio.sleep(0.2)
    with await asyncio.to_thread(Service, url, "--port", port):
        return await asked


@pytest.mark.parametrize("limits", ["items = 100\n", "body = 5_000\n"])
def test_a_service_of_lower_limits(any_server, news, limits):
    """Calls of any length are answered, and so are claims with payloads."""
    items = [f"https://example.com/{number}" for number in range(1000)]
    with Service(any_server.url, settings=f"[limits]\n{limits}") as service, FilterAPIClient(service.url) as api:
        assert api.insert_ages("news", items + items) == [0] * 1000 + [1] * 1000
        assert api.contains_many("news", items) == [True] * 1000
        with api.claims("news") as mine:
            pages = [f"page {number}" for number in range(1000)]
            assert mine.claim_many(pages, payload=lambda page: {"of": page, "more": "x" * 1000}) == [True] * 1000
            assert mine.reject(pages[:300], reason="too long") == [True] * 300
            assert mine.commit(pages[300:600]) == [True] * 300
        assert len(api.dead_letters("news", limit=300)) == 300
        assert api.retry_dead_letters("news", pages[:300]) == 300
