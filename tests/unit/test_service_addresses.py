"""The address of a client: only what trusted proxies say of it is believed."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from urifilter_redis.service.requests import client_of, group_of, is_in

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


def seen(peer, *forwarded, proxies=PROXIES) -> str:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    return client_of({"client": (peer, 1) if peer else None, "headers": headers}, proxies)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", ["198.51.100.1"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1, 10.9.9.9"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, nonsense, 10.9.9.9"], "10.9.9.9"),
        ("10.0.0.1", ["10.0.0.3,10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::1", ["2001:DB8:0::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", [f"{'1.1.1.1,' * 100_000}198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", [",".join(["198.51.100.1", *["10.0.0.2"] * 50])], "10.0.0.2"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_client(peer, forwarded, client):
    """The newest address that no trusted proxy has; what stands before it in the header may be made up."""
    assert seen(peer, *forwarded) == client


def test_client_without_proxies():
    """Nobody's header is believed."""
    assert seen("10.0.0.1", "198.51.100.1", proxies=[]) == "10.0.0.1"


def test_groups():
    """An IPv4 address, and the network of an IPv6 address: one machine has as many of those as it likes."""
    assert group_of("192.0.2.1") == group_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert group_of("2001:db8:1:2::1") == group_of("2001:db8:1:2:ffff::") == "2001:db8:1:2::/64"
    assert group_of("2001:db8:1:3::1") == "2001:db8:1:3::/64"
    assert group_of("fe80::1%eth0") == "fe80::/64"
    assert group_of("") == group_of("nonsense") == "unknown"


def test_is_in():
    """Of both kinds; what is no address is nowhere."""
    assert [is_in(each, PROXIES) for each in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1")] == [True] * 3
    assert [is_in(each, PROXIES) for each in ("11.0.0.1", "fe80::1", "", "x")] == [False] * 4
