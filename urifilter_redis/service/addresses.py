"""The address of a client, also behind proxies that are trusted."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, TypeAlias

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import Scope

__all__ = ["FORWARDED_FOR", "Network", "client_of", "group_of", "is_in", "peer_of"]

#: The header in which each proxy adds the address that it was asked from.
FORWARDED_FOR = "X-Forwarded-For"

#: The newest entries of that header that are read; a chain of proxies is shorter.
MOST_HOPS = 20

#: One customer has at least so many leading bits of an IPv6 address, and so 2 ** 64 addresses.
CUSTOMER_BITS = 64

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def peer_of(scope: Scope) -> str:
    """Return the address at the other end of the connection; empty if it is not over IP."""
    return (scope.get("client") or ("",))[0]


def client_of(scope: Scope, proxies: Collection[Network]) -> str:
    """Return the address of a request's client.

    The entries of X-Forwarded-For count from the last one on for as long as trusted proxies have added them: all
    before that may be made up.

    Args:
        scope: the request's scope.
        proxies: the networks of the proxies that are trusted.
    """
    client = peer_of(scope)
    if not proxies or not is_in(client, proxies):
        return client
    hops = ",".join(Headers(scope=scope).getlist(FORWARDED_FOR)).rsplit(",", MOST_HOPS)[-MOST_HOPS:]
    for hop in reversed(hops):
        found = _read(_without_port(hop.strip()))
        if found is None:
            break
        client = str(found)
        if not is_in(client, proxies):
            break
    return client


def is_in(address: str, networks: Collection[Network]) -> bool:
    """Whether an address belongs to one of some networks; what is no address belongs to none."""
    found = _read(address)
    return found is not None and any(found in network for network in networks)


def group_of(address: str) -> str:
    """Return the addresses that are counted as one: an IPv4 address, or the IPv6 network of one customer."""
    found = _read(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, CUSTOMER_BITS), strict=False))
    return "unknown" if found is None else str(found)


def _read(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; an IPv4 address that came over an IPv6 socket is an IPv4 address; None: the text is none."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])  # without the network card's name
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _without_port(text: str) -> str:
    """Take off the port that some proxies add: ``192.0.2.1:80``, ``[2001:db8::1]:80``."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
