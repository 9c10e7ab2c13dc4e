"""Addresses, and that nothing secret is in what is shown of them."""

from __future__ import annotations

import sys

import pytest

import urifilter_redis
from urifilter_redis import ServerUnavailable, UriFilter
from urifilter_redis.transport.connections import without_password


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
    "url", ["http://:secret@host", "redis://user:sec/ret@host", "redis://[secret", "secret", "redis://h:se"]
)
def test_no_address(url):
    """What is no address is not shown either: a mistyped password might be in it."""
    with pytest.raises(ValueError, match="address is a URL such as") as caught:
        UriFilter.open("news", redis=url)
    assert "sec" not in str(caught.value)
