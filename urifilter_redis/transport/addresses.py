"""Addresses: where the server is, what may be shown of that, and what goes through pickle.

Beside redis-py's URLs there are ``redis+cluster://a:1,b:2`` for nodes of a Redis Cluster, and
``redis+sentinel://a:1,b:2/service/0`` for a master that Sentinels watch; ``rediss+…`` of each over TLS.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote_plus

from urifilter_redis.errors import ArchiveError, ServerUnavailable
from urifilter_redis.transport.targets import bracketed, split, target_of, with_options

if TYPE_CHECKING:
    from urifilter_redis.transport.embedded import EmbeddedServer

__all__ = ["URL_VARIABLE", "Address", "Packed", "database_of", "redis_cli", "without_password"]

#: The environment's address of the server.
URL_VARIABLE = "URIFILTER_REDIS_URL"

#: Options of a URL that are secret, beside those that are some password: whose it is, and tokens.
_SECRET = ("user", "password", "credential", "authmechanismproperties")


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
        return f"{parts.scheme}://{user}{','.join(map(bracketed, target.hosts))}/{service}{database}"
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
        follows: whether it goes to the node that has the keys, as in a Redis Cluster.

    Example:
        >>> redis_cli("redis://reader:***@localhost:6379/1")
        ['redis-cli', '-u', 'redis://localhost:6379/1']
    """
    parts = split(shown)
    if parts.scheme == "unix":
        return ["redis-cli", "-s", parts.path, *(["-n", parts.query.removeprefix("db=")] if parts.query else [])]
    if "+" in parts.scheme:  # of a cluster any node will do; who the master is Sentinels say at any time
        target = target_of(shown)
        of_cluster = target.kind == "cluster"
        host = bracketed(target.hosts[0]) if of_cluster else "MASTER:6379"
        return ["redis-cli", *(["-c"] if of_cluster else []), "-u", f"{target.scheme}://{host}{target.path or '/0'}"]
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path or '/0'}"
    return ["redis-cli", *(["-c"] if follows else []), "-u", url]


def _without_secrets(url: str) -> str:
    """Return an address without user, password and secret options; all else is as it was."""
    parts = split(url)
    options = [each for each in parts.query.split("&") if each and not _is_secret(each)]
    query = f"?{'&'.join(options)}" if options else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"


def _is_secret(option: str) -> bool:
    name = unquote_plus(option.partition("=")[0]).lower()
    return any(each in name for each in _SECRET)


def _place(url: str) -> object:
    """Return what two addresses of the same place have in common, whoever asks there."""
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
        url: of the server or archive; empty for the embedded server.
        shown: the same, to be shown.
        variable: of the environment, which has what may not go through pickle.
        bare: there were a user, a password or the like, which were left out.
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
        """Return the address, with what the environment has of it.

        Raises:
            ServerUnavailable: the environment does not have what was left out; ArchiveError likewise.
        """
        if not self.bare:
            return self.url
        given = os.environ.get(self.variable, "")
        if given and _place(given) == _place(self.url):
            if self.variable != URL_VARIABLE:
                return given
            options = target_of(self.url)
            return with_options(given, options.wait_replicas, options.reads)
        text = (
            f"{self.shown}: pickle leaves out its user and password: set {self.variable} to the same address with both"
        )
        kind = ServerUnavailable if self.variable == URL_VARIABLE else ArchiveError
        raise kind(f"{text} ({'it names another place' if given else 'it is not set'})")


def _acquire() -> EmbeddedServer:
    try:
        from urifilter_redis.transport import embedded  # noqa: PLC0415 - needs file locks, which not every platform has
    except ModuleNotFoundError as error:
        text = "no server was named, and there is no embedded one for this platform"
        raise ServerUnavailable(f"{text}: give the address of a Redis (--redis, redis=, {URL_VARIABLE})") from error
    return embedded.acquire()


class Address:
    """Where the server is: what the caller gave, else the environment's, else the embedded server.

    What was packed is unpacked when it is first needed; anything else is found at once.

    Raises:
        ServerUnavailable: the embedded server is wanted and cannot be had, or what was packed cannot be unpacked.
    """

    def __init__(self, given: str | Packed | None = None) -> None:
        self._joined: list[EmbeddedServer] = []  # of several threads at once the first; all are left in the end
        self._packed = given if isinstance(given, Packed) else None
        self._url = "" if isinstance(given, Packed) else given or os.environ.get(URL_VARIABLE) or ""
        if self._packed is None:
            self.find()

    def find(self) -> None:
        """Unpack it, and join the embedded server, if that is not done."""
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
        """The server's."""
        self.find()
        return self._url

    @property
    def embedded(self) -> EmbeddedServer | None:
        """The embedded server, which this holds until it is closed; or None."""
        return self._joined[0] if self._joined else None

    @property
    def shown(self) -> str:
        """The address, to be shown."""
        return self._packed.shown if self._packed else without_password(self._url)

    def packed(self) -> Packed:
        """Return the address for another process, or, with all secrets, for a copy in this one."""
        return self._packed or Packed("" if self.embedded else self._url, self.shown, URL_VARIABLE)

    def revive(self) -> None:
        """See to it that the embedded server runs, whoever killed it; the caller asks again."""
        if self.embedded is not None:
            self.embedded.revive()

    def close(self) -> None:
        """Leave the embedded server."""
        for each in self._joined:
            each.close()
