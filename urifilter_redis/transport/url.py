"""URLs: which servers a URL names, its options, what may be shown of it, and what goes through pickle.

Beside the URLs of redis-py there are ``redis+cluster://a:1,b:2`` for nodes of a Redis Cluster, and
``redis+sentinel://a:1,b:2/service/0`` for a master that Sentinels watch; ``rediss+…`` of each over TLS. The options of
the library itself, ``wait_replicas`` and ``reads``, are taken out before redis-py sees a URL.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, unquote_plus, urlsplit

from urifilter_redis.errors import ArchiveError, ServerUnavailable

if TYPE_CHECKING:
    from urifilter_redis.transport.embedded import EmbeddedServer

#: The environment variable with the address of the server.
URL_VARIABLE = "URIFILTER_REDIS_URL"

#: Who answers ``contains``: the master, or a replica if there is one.
READS = ("master", "replicas")

#: The options of a URL for the Sentinels themselves, by the name that redis-py has for them.
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}

#: The words in the names of a URL's secret options: users and passwords, and what may hold a token.
_SECRET = ("user", "password", "credential", "authmechanismproperties")

_NETLOC = re.compile(r"[^/?#]*")


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
        """Return redis-py's URL of a node, ``host:port``; of none: of the server itself, or of the first node.

        A node without a host has that of the server.
        """
        if sentinel:
            query = f"?{self.sentinel_query}" if self.sentinel_query else ""
            return f"{self.scheme}://{_bracketed(node)}{query}"
        query = f"?{self.query}" if self.query else ""
        if not node and self.kind == "server":
            return f"{self.scheme}://{self.login}{self.hosts[0]}{self.path}{query}"
        host, _, port = (node or self.hosts[0]).rpartition(":")
        host = host or urlsplit(f"redis://{self.hosts[0]}").hostname or "localhost"
        scheme, path = ("redis", "") if self.scheme == "unix" else (self.scheme, self.path)
        return f"{scheme}://{self.login}{_bracketed(f'{host}:{port}')}{path}{query}"


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
        hosts = tuple(_with_port(each, 26379 if kind == "sentinel" else 6379) for each in netloc.split(","))
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
    """Take a URL apart as ``urlsplit`` does. Newer releases of that refuse brackets in a list of hosts.

    Raises:
        ValueError: it is no URL. The text may have a part of the password.
    """
    scheme, mark, rest = url.partition("://")
    if "+" not in scheme or not mark:
        return urlsplit(url)
    netloc = _NETLOC.match(rest)[0]  # type: ignore[index]  # an empty text matches, too
    return urlsplit(f"{scheme}://host{rest[len(netloc) :]}")._replace(netloc=netloc)


def with_options(url: str, wait_replicas: int, reads: str) -> str:
    """Return an address with other options of the library; 0, or the first of ``READS``, leaves the address's own."""
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


def _bracketed(node: str) -> str:
    """Return ``host:port`` as it stands in a URL: an IPv6 address in brackets."""
    host, _, port = node.rpartition(":")
    return f"[{host}]:{port}" if ":" in host else node


def without_password(url: str) -> str:
    """Return an address that may be shown: no password, no query, nothing that could be part of either."""
    parts = split(url)
    of_sentinel = parts.scheme.endswith("+sentinel")
    path = parts.path[1:].partition("/")[2] if of_sentinel else parts.path[1:]
    named = [each for each in (*parse_qs(parts.query).get("db", []), path) if each.isdigit()]
    database = named[0] if named else "0"
    if parts.scheme == "unix":
        return f"unix://{parts.path}{'' if database == '0' else f'?db={database}'}"
    user = f"{parts.netloc.rpartition('@')[0].partition(':')[0]}:***@" if "@" in parts.netloc else ""
    if "+" in parts.scheme:
        target = target_of(url)
        service = f"{target.service}/" if of_sentinel else ""
        return f"{parts.scheme}://{user}{','.join(map(_bracketed, target.hosts))}/{service}{database}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
    return f"{parts.scheme}://{user}{host}:{parts.port or 6379}/{database}"


def database_of(url: str) -> int:
    """Return the number of the database that an address names.

    Example:
        >>> database_of("unix:///run/redis?db=3")
        3
    """
    shown = split(without_password(url))
    return int((shown.query.removeprefix("db=") if shown.scheme == "unix" else shown.path[1:]) or 0)


def redis_cli(shown: str, *, follows: bool = False) -> list[str]:
    """Return redis-cli with its options for a server, without a user and password.

    Args:
        shown: the server's address as ``without_password`` returns it.
        follows: whether redis-cli is to go to the node that has the keys, as in a Redis Cluster.

    Example:
        >>> redis_cli("redis://reader:***@localhost:6379/1")
        ['redis-cli', '-u', 'redis://localhost:6379/1']
    """
    parts = split(shown)
    if parts.scheme == "unix":
        return ["redis-cli", "-s", parts.path, *(["-n", parts.query.removeprefix("db=")] if parts.query else [])]
    if "+" in parts.scheme:  # of a cluster any node will do; the master of Sentinels changes
        target = target_of(shown)
        of_cluster = target.kind == "cluster"
        host = _bracketed(target.hosts[0]) if of_cluster else "MASTER:6379"
        return ["redis-cli", *(["-c"] if of_cluster else []), "-u", f"{target.scheme}://{host}{target.path or '/0'}"]
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path or '/0'}"
    return ["redis-cli", *(["-c"] if follows else []), "-u", url]


def _without_secrets(url: str) -> str:
    """Return an address without user, password and secret options."""
    parts = split(url)
    options = [each for each in parts.query.split("&") if each and not _is_secret(each)]
    query = f"?{'&'.join(options)}" if options else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"


def _is_secret(option: str) -> bool:
    name = unquote_plus(option.partition("=")[0]).lower()
    return any(word in name for word in _SECRET)


def _place(url: str) -> object:
    """Return what all addresses of a server or archive have in common, whoever the user is."""
    bare = _without_secrets(url)
    if bare.startswith("mongodb"):
        return bare.partition("?")[0]
    if "+" not in split(bare).scheme:
        return without_password(bare)
    target = target_of(bare)  # of nodes, or Sentinels, in any order
    return target.scheme, target.kind, sorted(target.hosts), target.service, target.path.strip("/") or "0"


@dataclass(frozen=True, slots=True)
class Packed:
    """An address that goes through pickle.

    Attributes:
        url: the address of the server or archive; empty for the embedded server.
        shown: the same, to be shown.
        variable: the environment variable that has the secrets, which may not go through pickle.
        bare: whether a user, a password or the like were left out.
    """

    url: str = field(repr=False)
    shown: str
    variable: str
    bare: bool = False

    def without_secrets(self) -> Packed:
        """Return what may leave this process."""
        url = _without_secrets(self.url) if self.url else ""
        return Packed(url, self.shown, self.variable, self.bare or url != self.url)

    def unpacked(self) -> str:
        """Return the address, with the secrets from the environment.

        Raises:
            ServerUnavailable: the environment does not have the secrets of a server; ArchiveError: of an archive.
        """
        if not self.bare:
            return self.url
        given = os.environ.get(self.variable, "")
        if given and _place(given) == _place(self.url):
            if self.variable != URL_VARIABLE:
                return given
            options = target_of(self.url)
            return with_options(given, options.wait_replicas, options.reads)
        kind = ServerUnavailable if self.variable == URL_VARIABLE else ArchiveError
        text = f"{self.shown}: pickle leaves out its user and password: set {self.variable}"
        why = "it names another place" if given else "it is not set"
        raise kind(f"{text} to the same address with both ({why})")


def _acquire() -> EmbeddedServer:
    try:
        from urifilter_redis.transport import embedded  # noqa: PLC0415 - needs file locks, which not every platform has
    except ModuleNotFoundError as error:
        text = "no server was named, and there is no embedded one for this platform"
        raise ServerUnavailable(f"{text}: give the address of a Redis (--redis, redis=, {URL_VARIABLE})") from error
    return embedded.acquire()


class Address:
    """The server's address: the caller's, else the environment's, else that of the embedded server.

    A packed address is unpacked when it is first needed; any other is found at once.

    Raises:
        ServerUnavailable: the embedded server is wanted and cannot be had, or a packed address cannot be unpacked.
    """

    def __init__(self, given: str | Packed | None = None) -> None:
        self._joined: list[EmbeddedServer] = []  # of several threads at once the first; all are left in the end
        self._packed = given if isinstance(given, Packed) else None
        self._url = "" if isinstance(given, Packed) else given or os.environ.get(URL_VARIABLE) or ""
        if self._packed is None:
            self.find()

    def find(self) -> None:
        """Unpack the address, or join the embedded server, if that is not done."""
        if not self._url:
            url = self._packed.unpacked() if self._packed else ""
            if not url:
                self._joined.append(_acquire())
            self._url = url or self._joined[0].url

    @property
    def is_found(self) -> bool:
        """Whether ``url`` is there at once."""
        return bool(self._url)

    @property
    def url(self) -> str:
        """The server's URL."""
        self.find()
        return self._url

    @property
    def embedded(self) -> EmbeddedServer | None:
        """The embedded server, which is in use until ``close``; None: another server."""
        return self._joined[0] if self._joined else None

    @property
    def shown(self) -> str:
        """The address, to be shown."""
        return self._packed.shown if self._packed else without_password(self._url)

    def packed(self) -> Packed:
        """Return the address for another process, or, with all secrets, for a copy in this one."""
        return self._packed or Packed("" if self.embedded else self._url, self.shown, URL_VARIABLE)

    def revive(self) -> None:
        """Start the embedded server if it does not run; the caller tries again."""
        if self.embedded is not None:
            self.embedded.revive()

    def close(self) -> None:
        """Leave the embedded server."""
        for each in self._joined:
            each.close()
