"""Addresses, and that nothing secret is in what is shown of them."""

from __future__ import annotations

import pickle
import sys

import pytest

import urifilter_redis
from urifilter_redis import ArchiveError, ServerUnavailable, UriFilter
from urifilter_redis.transport.url import Packed, without_password


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
    ],
)
def test_shown_without_password(url, shown):
    """What is shown names the server and nothing else."""
    assert without_password(url) == shown


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
def test_no_address(url):
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
