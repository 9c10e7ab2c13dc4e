"""Addresses of one server, of a Redis Cluster and behind Sentinels: their parts, what is shown and what is pickled."""

from __future__ import annotations

import pickle
import sys

import pytest

import urifilter_redis
from urifilter_redis import ArchiveError, ServerUnavailable, Timeouts, UriFilter
from urifilter_redis.engine.topology import GIVEN
from urifilter_redis.transport.endpoints import Endpoint, check_url
from urifilter_redis.transport.url import (
    URL_VARIABLE,
    Address,
    Packed,
    redis_cli,
    target_of,
    with_options,
    without_password,
)

TWO = "redis+sentinel://me:secret@a:1,[::1]:2/crawl/3?sentinel_username=watcher&sentinel_password=hidden&db=3"


@pytest.mark.parametrize(
    ("url", "node", "made"),
    [
        ("redis://me:secret@h:1/2?x=y", GIVEN, "redis://me:secret@h:1/2?x=y"),
        ("redis://me:secret@h:1/2?x=y&wait_replicas=1&reads=replicas", GIVEN, "redis://me:secret@h:1/2?x=y"),
        ("redis://me:secret@h:1/2?x=y", "g:7", "redis://me:secret@g:7/2?x=y"),
        ("redis://h:1", ":7", "redis://h:7"),
        ("redis://[::1]:1/0", ":7", "redis://[::1]:7/0"),
        ("rediss://h/0", "::1:7", "rediss://[::1]:7/0"),
        ("unix:///tmp/s?db=2", GIVEN, "unix:///tmp/s?db=2"),
        ("unix:///tmp/s?db=2", "h:7", "redis://h:7?db=2"),
        ("unix:///tmp/s", ":7", "redis://localhost:7"),
        ("redis+cluster://:secret@a:1,b", GIVEN, "redis://:secret@a:1"),
        ("redis+cluster://:secret@a:1,b/0?x=y", "c:7", "redis://:secret@c:7/0?x=y"),
        ("rediss+cluster://a,b", "b:6379", "rediss://b:6379"),
        ("redis+sentinel://me:secret@a,b/crawl/3", "c:7", "redis://me:secret@c:7/3"),
        ("redis+sentinel://a,b/crawl", "::1:7", "redis://[::1]:7/"),
        ("rediss+sentinel://a/crawl/0?ssl_ca_certs=x", "c:7", "rediss://c:7/0?ssl_ca_certs=x"),
    ],
)
def test_the_url_of_a_node(url, node, made):
    """It has the user, the database and the options of the address, and none of the library's own."""
    assert target_of(url).url(node) == made


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("redis+cluster://a,b:7,[::1],[fe80::1]:9", ("a:6379", "b:7", "::1:6379", "fe80::1:9")),
        ("redis+sentinel://a,b:7,[::1]/crawl", ("a:26379", "b:7", "::1:26379")),
        ("redis+cluster://me:p%40ss@a", ("a:6379",)),
    ],
)
def test_hosts(url, hosts):
    """Each kind has its usual port; an address of IPv6 stands in brackets."""
    assert target_of(url).hosts == hosts


def test_the_url_of_a_sentinel():
    """It has the Sentinels' own user and password, the options for TLS, and nothing of the master."""
    assert target_of(TWO).url("::1:2", sentinel=True) == "redis://[::1]:2?username=watcher&password=hidden"
    secure = target_of("rediss+sentinel://me:secret@a/crawl/0?ssl_ca_certs=x&max_connections=3")
    assert secure.url("a:26379", sentinel=True) == "rediss://a:26379?ssl_ca_certs=x"
    assert target_of("redis+sentinel://a/crawl").url("a:26379", sentinel=True) == "redis://a:26379"


def test_the_service():
    """Its name may have any character; the database stands behind it."""
    found = target_of("redis+sentinel://a/my%2Fcrawl/3")
    assert (found.service, found.path) == ("my/crawl", "/3")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis+nosuch://me:secret@a", "there are redis\\+cluster:// and redis\\+sentinel://"),
        ("unix+cluster:///secret", "there are redis\\+cluster:// and"),
        ("redis+cluster://me:secret@a/1", "database 0 only"),
        ("redis://me:secret@a/secret", "the database is a number: redis://host:6379/0"),
        ("rediss://me:secret@a/1x", "the database is a number"),
        ("redis://me:secret@a/0/secret", "the database is a number"),
        ("redis+cluster://me:secret@", "a host is missing"),
        ("redis+cluster://me:secret@a,,b", "a host is missing"),
        ("redis+sentinel://me:secret@a", "the name of the service is missing"),
        ("redis+sentinel://me:secret@a/", "the name of the service is missing"),
        ("redis+sentinel://me:secret@a/crawl/secret", "the database is a number"),
        ("redis+sentinel://me:secret@a:secret/crawl", "is a URL such as|port"),
        ("redis+cluster://me:sec/ret@a", "."),
        ("redis+cluster://me:secret@[a", "."),
        ("redis://me:secret@a?wait_replicas=-1", "wait_replicas is a whole number from 0 up"),
        ("redis://me:secret@a?wait_replicas=", "wait_replicas is a whole number from 0 up"),
        ("redis://me:secret@a?reads=replica", "reads is master or replicas"),
        ("redis+sentinel://me:secret@a/crawl?reads=any", "reads is master or replicas"),
        ("redis+cluster://me:secret@a:99999", "."),
        ("redis+sentinel://a/crawl?sentinel_password=secret&socket_timeout=x", "."),
        (
            "redis://me:secret@a/0?tls=true",
            "tls: there is no such option of an address; for TLS it begins with rediss://",
        ),
        ("rediss://me:secret@a/0?tls=true&ssl_ca_certs=x", "tls: there is no such option"),
        ("unix:///tmp/s?host_name=a", "host_name: there is no such option"),
        ("redis+cluster://me:secret@a,b?decode=1", "decode: there is no such option"),
        ("redis+sentinel://a/crawl?sentinel_password=secret&fuu=1", "fuu: there is no such option"),
        ("redis://:pa?x=secret@a", "in a password / and @ are written"),
    ],
)
def test_no_address(url, text):
    """The error says what is wrong; a part of a password may be anywhere in such an address, and is not shown."""
    with pytest.raises(ValueError, match=text) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)
    assert "ret@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://localhost", "redis://localhost:6379/0"),
        ("rediss://user:secret@host:1/2", "rediss://user:***@host:1/2"),
        ("redis://:secret@host/2?password=secret&x=secret", "redis://:***@host:6379/2"),
        ("redis://:se%2Fcret@[::1]:7/0", "redis://:***@[::1]:7/0"),
        ("redis://:secret@secret@host/0", "redis://:***@host:6379/0"),
        ("unix:///tmp/s?password=secret&db=1", "unix:///tmp/s?db=1"),
        ("unix:///tmp/s", "unix:///tmp/s"),
        ("redis://host/3?db=2", "redis://host:6379/2"),
        ("redis://:6379/secret@host", "redis://localhost:6379/0"),
        ("redis+cluster://me:secret@a:1,[::1]", "redis+cluster://me:***@a:1,[::1]:6379/0"),
        ("rediss+cluster://:secret@secret@a:1/0?password=secret", "rediss+cluster://:***@a:1/0"),
        ("redis+sentinel://:secret@a,b:7/crawl/3", "redis+sentinel://:***@a:26379,b:7/crawl/3"),
        (TWO, "redis+sentinel://me:***@a:1,[::1]:2/crawl/3"),
        ("redis+sentinel://a/crawl?wait_replicas=1", "redis+sentinel://a:26379/crawl/0"),
    ],
)
def test_shown(url, shown):
    """The server or all nodes are, without a password and options; what is shown can be shown again."""
    assert without_password(url) == shown
    assert without_password(shown) == shown


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("redis+cluster://me:secret@a:1,b:2", "redis-cli -c -u redis://a:1/0"),
        ("rediss+cluster://[::1]:1", "redis-cli -c -u rediss://[::1]:1/0"),
        ("redis+sentinel://a,b/crawl/3", "redis-cli -u redis://MASTER:6379/3"),
    ],
)
def test_redis_cli(url, command):
    """Advice to type has a place for the master, as Sentinels may name another at any time."""
    assert " ".join(redis_cli(without_password(url))) == command


@pytest.mark.parametrize(
    ("url", "options", "made"),
    [
        ("redis://a", (0, "master"), "redis://a"),
        ("redis://a?x=y", (2, "replicas"), "redis://a?x=y&wait_replicas=2&reads=replicas"),
        ("redis://a?wait_replicas=1&x=y", (2, "master"), "redis://a?x=y&wait_replicas=2"),
        ("redis://a?reads=replicas", (0, "master"), "redis://a?reads=replicas"),
        ("unix:///tmp/s?db=1", (1, "master"), "unix:///tmp/s?db=1&wait_replicas=1"),
    ],
)
def test_with_options(url, options, made):
    """Those that the caller gave stand in place of the address's own."""
    assert with_options(url, *options) == made


@pytest.mark.parametrize("url", [TWO, "redis+cluster://me:secret@a:1,b:2?wait_replicas=1", "redis://a?reads=replicas"])
def test_pickled(url, monkeypatch):
    """An address goes through pickle without secrets and with the options; the environment has the rest."""
    endpoint = Endpoint(Address(url), Timeouts(), None, (2, "master"), asynchronous=False)
    packed = endpoint.packed().without_secrets()
    assert "secret" not in repr((packed.shown, packed.variable, repr(packed), packed.url))
    assert "hidden" not in packed.url
    there: Packed = pickle.loads(pickle.dumps(packed))
    monkeypatch.setenv(URL_VARIABLE, url)
    opened = Endpoint(Address(there), Timeouts(), None, asynchronous=False)
    assert opened.wait_replicas == 2
    assert target_of(opened.address.url).hosts == target_of(url).hosts
    assert target_of(opened.address.url).login == target_of(url).login
    assert target_of(opened.address.url).reads == target_of(url).reads


@pytest.mark.parametrize(
    "elsewhere",
    [
        "redis+sentinel://me:secret@a:1,[::1]:2/other/3",
        "redis+sentinel://me:secret@a:1/crawl/3",
        "redis+sentinel://me:secret@a:1,[::1]:2/crawl/4",
        "redis+cluster://me:secret@a:1,[::1]:2",
    ],
)
def test_the_environment_names_another_place(elsewhere, monkeypatch):
    """Other hosts, another service or database are another place; the text has no password."""
    packed = Packed(TWO, "the address", URL_VARIABLE).without_secrets()
    monkeypatch.setenv(URL_VARIABLE, elsewhere)
    with pytest.raises(Exception, match="it names another place") as caught:
        packed.unpacked()
    assert "secret" not in str(caught.value)


def test_the_environment_names_the_same_in_another_order(monkeypatch):
    """The order of Sentinels, or nodes, says nothing about the place."""
    packed = Packed(TWO, "the address", URL_VARIABLE).without_secrets()
    turned = "redis+sentinel://me:secret@[::1]:2,a:1/crawl/3"
    monkeypatch.setenv(URL_VARIABLE, turned)
    assert packed.unpacked().startswith(turned)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_routes_of_an_origin(asynchronous):
    """Sentinels and seeds are those of the address; what the caller says of replicas counts, or else the address."""
    endpoint = Endpoint(Address(TWO), Timeouts(), None, (0, "replicas"), asynchronous=asynchronous)
    routes = endpoint.routes()
    assert (routes.service.name, routes.service.sentinels) == ("crawl", ("a:1", "::1:2"))
    assert (routes.reads_replicas, routes.waits, routes.must_search) == (True, False, True)
    options = endpoint.pool("::1:7").options
    assert {name: options[name] for name in ("host", "port", "db", "username", "password")} == {
        "host": "::1", "port": 7, "db": "3", "username": "me", "password": "secret",
    }  # fmt: skip
    of_sentinel = endpoint.pool("a:1", sentinel=True).options
    assert (of_sentinel["username"], of_sentinel["password"], of_sentinel.get("db")) == ("watcher", "hidden", None)
    cluster = Endpoint(Address("redis+cluster://a,b?wait_replicas=3"), Timeouts(), None, asynchronous=asynchronous)
    assert cluster.routes().seeds == ("a:6379", "b:6379")
    assert (cluster.wait_replicas, cluster.routes().waits) == (3, True)


def test_platform_without_file_locks(monkeypatch):
    """The library works there with a server that is named, and says so without."""
    monkeypatch.setitem(sys.modules, "urifilter_redis.transport.embedded", None)
    monkeypatch.delattr(urifilter_redis.transport, "embedded", raising=False)
    with pytest.raises(ServerUnavailable, match="no embedded one for this platform: give the address"):
        UriFilter.open("news")


@pytest.mark.parametrize(
    "url",
    [
        "http://:secret@host",
        "redis://user:sec/ret@host",
        "redis://user:12/secret@host",
        "redis://user:12#secret@host",
        "redis+sentinel://user:12/secret@host/0",
        "redis+cluster://user:12#secret@host",
        "redis://[secret",
        "secret",
        "redis://h:se",
    ],
)
def test_no_address_of_a_filter(url):
    """What is no address is not shown either: a mistyped password might be in it."""
    with pytest.raises(ValueError, match="address is a URL such as") as caught:
        UriFilter.open("news", redis=url)
    assert "sec" not in str(caught.value)
    assert caught.value.__context__ is None  # whose text may have a part of it, and which some loggers show


@pytest.mark.parametrize(
    ("url", "packed"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("rediss://me:secret@h:1/2?ssl_ca_certs=%2Fa%2Bb&max_connections=9", "rediss://h:1/2?ssl_ca_certs=%2Fa%2Bb&max_connections=9"),
        ("redis://h?password=secret&db=2&username=secret&ssl_password=secret", "redis://h?db=2"),
        ("redis://h?pass%77ord=secret", "redis://h"),
        ("unix:///tmp/s?db=1&password=secret", "unix:///tmp/s?db=1"),
        ("mongodb://me:secret@a:1,b:2/x?authSource=admin", "mongodb://a:1,b:2/x?authSource=admin"),
        ("mongodb+srv://h/x?tlsCertificateKeyFilePassword=secret", "mongodb+srv://h/x"),
        ("mongodb://h/x?authMechanismProperties=AWS_SESSION_TOKEN:secret", "mongodb://h/x"),
        ("file:///tmp/a%20b", "file:///tmp/a%20b"),
    ],
)  # fmt: skip
def test_nothing_secret_is_pickled(url, packed, monkeypatch):
    """The rest of an address goes through pickle; what was left out is the environment's, of the same place."""
    monkeypatch.delenv("VARIABLE", raising=False)
    there = pickle.loads(pickle.dumps(Packed(url, "the address", "VARIABLE").without_secrets()))
    assert there.url == packed
    if url == packed:
        assert there.unpacked() == url
        return
    with pytest.raises(ArchiveError, match="the address: .* set VARIABLE to the same address with both"):
        there.unpacked()
    monkeypatch.setenv("VARIABLE", url)
    assert there.unpacked() == url
    monkeypatch.setenv("VARIABLE", "redis://elsewhere/0")
    with pytest.raises(ArchiveError, match="it names another place"):
        there.unpacked()
