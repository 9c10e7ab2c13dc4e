"""Targets: what an address says about one server, the nodes of a Redis Cluster, or a master that Sentinels watch.

Beside the URLs of redis-py there are ``redis+cluster://a:1,b:2`` and ``redis+sentinel://a:1,b:2/service/0``, and
``rediss+…`` of both for TLS. The options of the library itself, ``OPTIONS``, are taken out before redis-py sees a URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

__all__ = ["OPTIONS", "READS", "OptionError", "Target", "bracketed", "split", "target_of", "with_options"]

#: The options of a URL that redis-py does not know.
OPTIONS = ("wait_replicas", "reads")

#: Who answers ``contains``: the master, or a replica if there is one.
READS = ("master", "replicas")

#: The options of a URL for the Sentinels themselves, by the name that redis-py has for them.
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}

_NETLOC = re.compile(r"[^/?#]*")

_PORTS = {"sentinel": 26379}


class OptionError(ValueError):
    """A part of an address is impossible; the text has no part of a password."""


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of an address.

    Attributes:
        scheme: that of redis-py: ``redis``, ``rediss`` or ``unix``.
        kind: ``server``, ``cluster`` or ``sentinel``.
        login: user and password as in the URL, with ``@``; empty: there are none.
        hosts: the addresses as ``host:port``; of a plain server what stands in the URL.
        path: what follows the hosts, with its slash; without the name of the service.
        service: the Sentinels' name for the master; empty: there are no Sentinels.
        query: the options for redis-py.
        sentinel_query: the options for the connections to Sentinels.
        wait_replicas: the replicas that must have an answer before it is believed.
        reads: one of ``READS``.
    """

    scheme: str
    kind: str
    login: str
    hosts: tuple[str, ...]
    path: str
    service: str
    query: str
    sentinel_query: str
    wait_replicas: int
    reads: str

    def url(self, node: str = "", *, sentinel: bool = False) -> str:
        """Return redis-py's URL of a node, ``host:port``; of none: of the server itself, or of the first.

        A node without a host has that of the server.
        """
        if sentinel:
            query = f"?{self.sentinel_query}" if self.sentinel_query else ""
            return f"{self.scheme}://{bracketed(node)}{query}"
        query = f"?{self.query}" if self.query else ""
        if not node and self.kind != "server":
            node = self.hosts[0]
        if not node:
            return f"{self.scheme}://{self.login}{self.hosts[0]}{self.path}{query}"
        host, _, port = node.rpartition(":")
        if not host:
            host = urlsplit(f"redis://{self.hosts[0]}").hostname or "localhost"
        over_socket = self.scheme == "unix"
        scheme, path = ("redis", "") if over_socket else (self.scheme, self.path)
        return f"{scheme}://{self.login}{bracketed(f'{host}:{port}')}{path}{query}"


@lru_cache(maxsize=64)
def target_of(url: str) -> Target:
    """Take an address apart.

    Raises:
        OptionError: an option of the library has an impossible value, or a part is missing. The text has no password.
        ValueError: it is no URL. The text may have a part of the password.
    """
    parts = split(url)
    scheme, _, kind = parts.scheme.partition("+")
    login, at, netloc = parts.netloc.rpartition("@")
    hosts: tuple[str, ...] = (netloc,)
    path, service = parts.path, ""
    if kind:
        if kind not in {"cluster", "sentinel"} or scheme not in {"redis", "rediss"}:
            raise OptionError("there are redis+cluster:// and redis+sentinel://, and rediss+… of both for TLS")
        hosts = tuple(_with_port(each, _PORTS.get(kind, 6379)) for each in netloc.split(","))
    if not kind and scheme in {"redis", "rediss"} and not (unquote(path).strip("/") or "0").isdecimal():
        raise OptionError("the database is a number: redis://host:6379/0")
    if kind == "sentinel":
        service, _, database = path.strip("/").partition("/")
        service, path = unquote(service), f"/{database}"
        if database and not database.isdecimal():
            raise OptionError("the database is a number: redis+sentinel://host:26379/SERVICE/0")
        if not service:
            raise OptionError("the name of the service is missing: redis+sentinel://host:26379,host:26379/SERVICE/0")
    if kind == "cluster" and path.strip("/") not in {"", "0"}:
        raise OptionError("a Redis Cluster has database 0 only")
    wait, reads, query, of_sentinels = _options(parts.query)
    return Target(scheme, kind or "server", login + at, hosts, path, service, query, of_sentinels, wait, reads)


def split(url: str) -> SplitResult:
    """Take a URL apart as ``urlsplit`` does, of which newer releases refuse brackets if there are several hosts.

    Raises:
        ValueError: it is no URL. The text may have a part of the password.
    """
    scheme, mark, rest = url.partition("://")
    if "+" not in scheme or not mark:
        return urlsplit(url)
    netloc = _NETLOC.match(rest)[0]  # type: ignore[index]  # an empty text matches, too
    return urlsplit(f"{scheme}://host{rest[len(netloc) :]}")._replace(netloc=netloc)


def with_options(url: str, wait_replicas: int, reads: str) -> str:
    """Return an address with options of the library in place of its own; those that are 0, or the first, stay."""
    given = {"wait_replicas": str(wait_replicas or ""), "reads": reads if reads != READS[0] else ""}
    wanted = {name: value for name, value in given.items() if value}
    if not wanted:
        return url
    base, _, query = url.partition("?")
    kept = [each for each in query.split("&") if each and each.partition("=")[0] not in wanted]
    return f"{base}?{'&'.join([*kept, *map('='.join, wanted.items())])}"


def _options(query: str) -> tuple[int, str, str, str]:
    """Return the library's options, and the options for redis-py and for the Sentinels."""
    wait, reads, kept, of_sentinels = 0, READS[0], [], []
    for each in filter(None, query.split("&")):
        name, _, value = each.partition("=")
        if name == "wait_replicas":
            if not value.isdecimal():
                raise OptionError("wait_replicas is a whole number from 0 up")
            wait = int(value)
        elif name == "reads":
            if value not in READS:
                raise OptionError(f"reads is {' or '.join(READS)}")
            reads = value
        elif name in _OF_SENTINELS:
            of_sentinels.append(f"{_OF_SENTINELS[name]}={value}")
        else:
            kept.append(each)
            of_sentinels += [each] if name.startswith("ssl_") else []
    return wait, reads, "&".join(kept), "&".join(of_sentinels)


def _with_port(host: str, port: int) -> str:
    """Return ``host:port`` of an element of a list of hosts."""
    parts = urlsplit(f"redis://{host}")
    if not parts.hostname:
        raise OptionError("a host is missing: redis+cluster://host:6379,host:6380")
    return f"{parts.hostname}:{parts.port or port}"


def bracketed(node: str) -> str:
    """Return ``host:port`` as it stands in a URL: the address of IPv6 in brackets."""
    host, _, port = node.rpartition(":")
    return f"[{host}]:{port}" if ":" in host else node
