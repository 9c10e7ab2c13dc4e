"""TLS: ``rediss://`` with a CA and a client's certificate by options of the address; each mistake in words."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
import redis
from support.answering import answering
from support.asking import SHORT, awaited, blocking
from support.certificates import Authority
from support.cli import run
from support.servers import Server, executable, free_port
from support.service import Service
from support.service import ask as asked

from urifilter_redis import AsyncUriFilter, ServerUnavailable, UriFilter
from urifilter_redis.transport import tls

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    """A CA, and certificates of all kinds."""
    made = Authority(tmp_path_factory.mktemp("tls"))
    made.issue("server", "localhost", "127.0.0.1")
    made.issue("other", "other.example")
    made.issue("past", "localhost", days=-1)
    made.issue("client")
    made.issue("late", days=-1)
    made.issue("locked", password="a key's password")
    made.subject = Authority(tmp_path_factory.mktemp("tls2"))
    made.subject.issue("strange")
    return made


class SecureServer(Server):
    """A server that speaks TLS at a second port, and wants a client's certificate there."""

    def __init__(self, ca: Authority) -> None:
        self.ca, self.tls_port = ca, free_port()
        names = ("server.pem", "server.key", "ca.pem")
        files = dict(zip(("tls-cert-file", "tls-key-file", "tls-ca-cert-file"), names, strict=True))
        files = {option: str(ca.folder / name) for option, name in files.items()}
        super().__init__("redis70", **{"tls-port": str(self.tls_port)} | files)

    def address(self, *, host: str = "localhost", port: int = 0, **options: object) -> str:
        """Return the address at the port of TLS; an option None is left out."""
        named = {"ca_certs": self.ca.file} | self.of("client") | options
        query = urlencode({f"ssl_{name}": value for name, value in named.items() if value is not None})
        return f"rediss://{host}:{port or self.tls_port}/0?{query}"

    def of(self, name: str) -> dict[str, object]:
        """Return the options for a client's certificate."""
        return {"certfile": self.ca.folder / f"{name}.pem", "keyfile": self.ca.folder / f"{name}.key"}

    @contextmanager
    def showing(self, name: str):
        """Let it show another certificate."""
        with self.client() as admin:
            for shown in (name, "server"):
                files = {
                    "tls-cert-file": f"{self.ca.folder}/{shown}.pem",
                    "tls-key-file": f"{self.ca.folder}/{shown}.key",
                }
                admin.execute_command("CONFIG SET", *(word for pair in files.items() for word in pair))
                if shown == name:
                    yield


@pytest.fixture(scope="module")
def _secure(ca):
    if not _has_tls():
        text = "redis-server was built without TLS: install Debian's (apt-get install redis-server)"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
    with SecureServer(ca) as server:
        yield server


@pytest.fixture
def secure(_secure):
    """A server with TLS, which has an empty filter "news"."""
    _secure.ask("flushall")
    UriFilter.create("news", redis=_secure.url, capacity=1000).close()
    return _secure


def _has_tls() -> bool:
    """Whether Redis was built with TLS: one without does not know the option, and ends at once with its name."""
    command = [executable("redis70"), "--port", "0", "--tls-port", "0", "--tls-cert-file", "/nosuch", "--bogus", "1"]
    return "tls-cert-file" not in subprocess.run(command, capture_output=True, text=True).stdout


@pytest.fixture(params=[blocking, pytest.param(awaited, marks=pytest.mark.slow)], ids=["blocking", "asyncio"])
def ask(request):
    """Open a filter and ask it something."""
    return request.param


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"host": "127.0.0.1", "min_version": "TLSv1.3", "check_hostname": "yes", "cert_reqs": "required"},
        {"min_version": 771, "ciphers": "HIGH"},
    ],
)
def test_tls_with_certificates(secure, ask, options):
    """A CA and a client's certificate come by options of the address, with both clients."""
    with UriFilter.open("news", redis=secure.address(**options)) as news:
        assert news.insert("x")
    assert ask(secure.address(**options)) is True


def test_unchecked_certificates_only_when_asked(secure, ask):
    """The host's name is not checked, or nothing is, if the address says so."""
    with secure.showing("other"):
        assert ask(secure.address(check_hostname="false")) is False
        assert ask(secure.address(ca_certs=None, cert_reqs="none")) is False


def test_encrypted_key(secure, ask):
    """The key's password is an option, too, which is shown nowhere; without it nobody is asked at the terminal."""
    locked = secure.of("locked")
    assert ask(secure.address(**locked, password="a key's password")) is False
    for wrong in ({}, {"password": "secret"}):
        with pytest.raises(ServerUnavailable, match="ssl_password is not the key's") as caught:
            ask(secure.address(**locked, **wrong))
        assert "secret" not in str(caught.value)


NO_CLIENT = {"certfile": None, "keyfile": None}
MISTAKES = {
    "no file": ({"ca_certs": "/nosuch/ca.pem"}, "ssl_ca_certs: No such file or directory (/nosuch/ca.pem)"),
    "no folder": ({"ca_path": "/nosuch"}, "ssl_ca_certs="),
    "no certificate": ({"certfile": "/nosuch/client.pem"}, "ssl_certfile: No such file or directory"),
    "no key": ({"keyfile": "/nosuch/client.key"}, "ssl_keyfile: No such file or directory"),
    "another key": ({"keyfile": "{folder}/other.key"}, "ssl_keyfile is not the key of ssl_certfile"),
    "no PEM": ({"ca_certs": "{folder}/server.key"}, "has no certificate or no key"),
    "unknown CA": ({"ca_certs": None}, "does not know the CA of the server's certificate"),
    "ciphers": ({"ciphers": "nosuch"}, "ssl_ciphers names no cipher"),
    "no client": (NO_CLIENT, "a client's certificate"),
    "late client": ({"certfile": "{folder}/late.pem", "keyfile": "{folder}/late.key"}, "(ssl_certfile) is out of date"),
    "strange client": (
        {"certfile": "{strange}/strange.pem", "keyfile": "{strange}/strange.key"},
        "does not accept the client's certificate",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_words(secure, ask, mistake):
    """Each names the option at fault, and is not tried again, unless the server only broke off."""
    options, text = MISTAKES[mistake]
    folders = {"folder": secure.ca.folder, "strange": secure.ca.subject.folder}
    options = {name: value and value.format(**folders) for name, value in options.items()}
    if mistake == "no folder":
        options["ca_certs"] = None
    with pytest.raises(ServerUnavailable) as caught:
        ask(secure.address(**options))
    told = str(caught.value)
    if "client" in mistake and "broke the connection off" in told:  # the alert was overtaken by the next write
        assert "ssl_certfile=" in told
    else:
        assert text in told
        assert "gave up" not in told


@pytest.mark.parametrize(("name", "text"), [("other", "for other hosts"), ("past", "out of date: renew it")])
def test_wrong_certificate_of_the_server(secure, ask, name, text):
    """It is for another host, or it has ended: no connection, and the reason in words."""
    with secure.showing(name), pytest.raises(ServerUnavailable, match=text) as caught:
        ask(secure.address())
    assert "gave up" not in str(caught.value)


def test_versions_without_an_overlap(secure, ask):
    """A server that has older versions of TLS only."""
    with secure.client() as admin:
        admin.config_set("tls-protocols", "TLSv1.2")
        try:
            with pytest.raises(ServerUnavailable, match="see ssl_min_version"):
                ask(secure.address(min_version="TLSv1.3"))
            assert ask(secure.address(min_version="TLSv1.2")) is False
        finally:
            admin.config_set("tls-protocols", "")


@pytest.mark.parametrize("scheme", ["rediss", "redis"])
def test_the_other_port(secure, ask, scheme):
    """TLS at the port without it, and the other way round."""
    url = secure.address(port=secure.port) if scheme == "rediss" else f"redis://localhost:{secure.tls_port}/0"
    text = "does the server speak TLS at this port" if scheme == "rediss" else "begins with rediss://"
    with pytest.raises(ServerUnavailable, match=text):
        ask(url)


def test_no_tls_is_spoken(ask, ca):
    """Something answers at once, and not in TLS."""
    broken = pytest.raises(ServerUnavailable, match="does not speak TLS at this port")
    with answering(lambda _: b"-ERR unknown command\r\n") as port, broken:
        ask(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={ca.file}")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://h/0?ssl_ca_certs=/x", "for an address that begins with rediss://"),
        ("unix:///s?ssl_certfile=/x", "for an address that begins with rediss://"),
        ("rediss://h/0?ssl_min_version=TLSv1.1", "ssl_min_version is TLSv1.2 or TLSv1.3 and not 'TLSv1.1'"),
        ("rediss://h/0?ssl_min_version=5", "ssl_min_version is TLSv1.2"),
        ("rediss://h/0?ssl_check_hostname=perhaps", "ssl_check_hostname is true or false"),
        ("rediss://h/0?ssl_cert_reqs=most", "ssl_cert_reqs is required, optional or none"),
        ("rediss://h/0?ssl_keyfile=/x", "give ssl_certfile, too"),
        ("rediss://h/0?ssl_validate_ocsp=true", "ssl_validate_ocsp: no option of rediss://"),
    ],
)
def test_impossible_options(ask, url, text):
    """They are refused before anything is connected, also those that redis-py would silently do nothing for."""
    with pytest.raises(ValueError, match=re.escape(text)):
        ask(url)


def test_options_that_are_read_are_taken_off():
    """The rest of the address stays as it was."""
    url = "rediss://u:p@h:1/2?ssl_ca_certs=%2Fa%26b&ssl_min_version=TLSv1.3&health_check_interval=5"
    rest, read = tls.taken(url)
    assert rest == "rediss://u:p@h:1/2?ssl_ca_certs=%2Fa%26b&health_check_interval=5"
    assert read == {"ssl_min_version": 772}
    assert tls.taken("redis://h/0") == ("redis://h/0", {})
    assert tls.taken("rediss://h?ssl_cert_reqs=none") == ("rediss://h", {"ssl_cert_reqs": "none"})


def test_a_certificate_that_ends_while_connected(secure):
    """A renewed certificate is used by the next connection; a late one says so."""
    certificate, key = secure.ca.issue("mine")
    url = secure.address(certfile=certificate, keyfile=key)
    with UriFilter.open("news", redis=url, timeouts=SHORT) as news, secure.client() as admin:
        assert news.insert("x")
        secure.ca.issue("mine", days=-1)
        admin.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(ServerUnavailable, match="ssl_certfile"):
            news.insert("y")
        secure.ca.issue("mine")
        assert news.contains("x")


def test_a_client_of_redis_py(secure):
    """A client that was made with these options is taken as it is, and shown with its scheme."""
    options = {"ssl_ca_certs": str(secure.ca.file)} | {f"ssl_{k}": str(v) for k, v in secure.of("client").items()}
    with redis.Redis(port=secure.tls_port, ssl=True, **options) as client, UriFilter.open("news", redis=client) as news:
        assert news.server == f"rediss://localhost:{secure.tls_port}/0"
        assert news.insert("x")


def test_command_line(secure):
    """The command line works over TLS, and says what is wrong."""
    url = secure.address()
    assert run("dedupe", "--filter", "news", "--redis", url, given=b"a\na\nb\n")[0] == b"a\nb\n"
    said = run("info", "news", "--redis", secure.address(ca_certs="/nosuch/ca.pem"), code=2)[1]
    assert "/nosuch/ca.pem" in said


def test_service(secure):
    """The service's redis_url takes the same options."""
    with Service(secure.address(**secure.of("locked"), password="a key's password")) as service:
        path = "/cr-clawr/uri_filter/api/uri_filter"
        answer = asked(service, "POST", path, {"filter_typeid": "news", "URI_list": ["a", "b", "a"]})
        assert answer.json()["unique"] == 2
        assert "password" not in service.log()


def test_coroutines_share_connections(secure):
    """Many tasks at once over TLS: no answer is lost or told twice."""

    async def crawl():
        async with AsyncUriFilter.open("news", redis=secure.address()) as news:
            return await asyncio.gather(*(news.insert(str(i % 100)) for i in range(300)))

    assert sum(asyncio.run(crawl())) == 100
