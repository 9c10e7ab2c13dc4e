"""Endpoints make the connections to a server and its nodes: from a URL, or as those of a client of redis-py."""

from __future__ import annotations

import functools
import inspect
import socket
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, quote

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import NoBackoff

from urifilter_redis.checks import check_least
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.engine.topology import GIVEN, Routes, Service
from urifilter_redis.protocol.outcomes import Unsent
from urifilter_redis.transport import tls
from urifilter_redis.transport.pool import CONNECTIONS, QUIET, Pool, PoolLimit, limit_of
from urifilter_redis.transport.sentinels import PATIENCE, SentinelEvents, events_of
from urifilter_redis.transport.url import (
    READS,
    Address,
    OptionError,
    Packed,
    Target,
    split,
    target_of,
    with_options,
    without_password,
)

#: The errors of redis-py for impossible options of a connection: an encoding, the name of a host.
IMPOSSIBLE = (LookupError, TypeError, ValueError, AttributeError)

#: The errors of an address where no server is, unless one was there before: a name that does not resolve, no socket.
_NOWHERE = (socket.gaierror, FileNotFoundError)

#: The options of a client of a Redis Cluster that the connections to its nodes have.
_OF_NODES = (
    "client_name", "credential_provider", "encoding", "encoding_errors", "health_check_interval", "password",
    "socket_keepalive", "socket_keepalive_options", "username",
)  # fmt: skip

#: How the options of a client that is given begin which are for its own pool: its times, and what it does about them.
_NOT_LENT = ("event_dispatcher", "maint", "orig_", "oss_", "retry", "socket_connect_timeout", "socket_timeout")


class Endpoint:
    """A server, or the servers of a deployment, to which connections are made.

    Args:
        given: an address; or a client of redis-py: ``Redis`` or ``RedisCluster``, blocking or of asyncio.
        timeouts: the times to wait.
        connections: the most connections to each server; None: ``CONNECTIONS``.
        options: ``wait_replicas`` and ``reads``; 0 and the first: as the address says.
        asynchronous: whether the connections are asyncio's.

    Attributes:
        shown: the address, to be shown.
        address: the given address; None: a client was given.

    Raises:
        ValueError: the address is impossible.
        TypeError: ``given`` is no client for here.
    """

    def __init__(
        self,
        given: Any,
        timeouts: Timeouts,
        connections: int | None,
        options: tuple[int, str] = (0, READS[0]),
        *,
        asynchronous: bool,
    ) -> None:
        self._library: ModuleType = redis.asyncio if asynchronous else redis
        self._retry = (redis.asyncio.retry if asynchronous else redis.retry).Retry(NoBackoff(), 0)
        self._timeouts, self._most = timeouts, _checked_connections(given, connections)
        self.address = given if isinstance(given, Address) else None
        self._client = None if isinstance(given, Address) else given
        if self._client is not None and not isinstance(given, self._library.Redis | self._library.RedisCluster):
            raise _no_client(given, "redis.asyncio.Redis" if asynchronous else "redis.Redis")
        if self.address is not None and self.address.is_found:
            check_url(self.address.url)
        self._options = _checked_options(*options)
        if self.embedded and self._options != (0, READS[0]):
            self.close()
            raise ValueError("the embedded server has no replicas: give the address of a server that has some")
        self.shown = self.address.shown if self.address else _shown_client(given)

    @property
    def is_of_cluster(self) -> bool:
        """Whether a client of a Redis Cluster was given."""
        return isinstance(self._client, self._library.RedisCluster)

    @property
    def is_one_client(self) -> bool:
        """Whether a client of one server was given, whose connections are for one event loop."""
        return self._client is not None and not self.is_of_cluster

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded server."""
        return self.address is not None and self.address.embedded is not None

    @property
    def wait_replicas(self) -> int:
        """The replicas that must have an answer before it is believed."""
        return self._options[0] or (self._target.wait_replicas if self._target else 0)

    @property
    def _target(self) -> Target | None:
        return target_of(self.address.url) if self.address else None

    def routes(self) -> Routes:
        """Return routes in which nothing but the address is known."""
        target, service, reads = self._target, None, READS[0]
        seeds = _nodes_of(self._client) if self.is_of_cluster else ()
        if target is not None:
            seeds, reads = target.hosts if target.kind == "cluster" else (), target.reads
            service = Service(target.service, target.hosts) if target.service else None
        reads_replicas, waits = {reads, self._options[1]} != {READS[0]}, self.wait_replicas > 0
        return Routes(seeds, service, alone=self.embedded, reads_replicas=reads_replicas, waits=waits)

    def pool(self, node: str = GIVEN, *, sentinel: bool = False) -> Pool:
        """Return a pool of new connections to a node; nothing is connected."""
        if (target := self._target) is not None:
            url = target.url(node, sentinel=sentinel)
            read = _redis_pool(self._library.ConnectionPool, self._retry, url, self._timeouts, self._most)
            limit = PoolLimit(read.max_connections)
            options = read.connection_kwargs | {"protocol": QUIET}  # whatever the URL says
            return Pool(read.connection_class, options, limit, mends=not target.service)
        if node == GIVEN and not self.is_of_cluster:
            theirs = self._client.connection_pool  # type: ignore[union-attr]
            return Pool(theirs.connection_class, self._lent(theirs), limit_of(theirs))
        if node == GIVEN:
            node = self.routes().seeds[0]
        host, _, port = node.rpartition(":")
        where = {"host": host or "localhost", "port": int(port)}
        if self.is_of_cluster:
            read = self._library.Redis(**self._options_of_nodes(), **where).connection_pool
            return Pool(read.connection_class, self._lent(read), PoolLimit(self._most))
        theirs = self._client.connection_pool  # type: ignore[union-attr]
        options = {name: value for name, value in self._lent(theirs).items() if name != "path"}
        kind = theirs.connection_class if "path" not in theirs.connection_kwargs else self._library.Connection
        where["host"] = host or options.get("host", "localhost")
        return Pool(kind, options | where, PoolLimit(theirs.max_connections))

    def _lent(self, theirs: Any) -> dict[str, Any]:
        """Return the options of a given client's connections, with the times and the protocol of the filter's own."""
        times = {"socket_connect_timeout": self._timeouts.connect, "socket_timeout": self._timeouts.reply}
        known = theirs.connection_kwargs.items()
        options = {name: value for name, value in known if not name.startswith(_NOT_LENT)}
        return options | times | {"retry": self._retry, "protocol": QUIET}

    def _options_of_nodes(self) -> dict[str, Any]:
        """Return the options of a client of a Redis Cluster for the connections to a node."""
        known = self._client.get_connection_kwargs()  # type: ignore[union-attr]
        secure = known.get("ssl") or "SSL" in getattr(known.get("connection_class"), "__name__", "")
        options = {name: value for name, value in known.items() if name in _OF_NODES or name.startswith("ssl_")}
        given = {name: value for name, value in options.items() if value is not None}
        return given | {"ssl": bool(secure)}

    def events(self, service: Service) -> SentinelEvents:
        """Return this process's subscriptions to the Sentinels of the address."""
        assert self.address is not None  # noqa: S101 - it names the Sentinels
        url, given = self.address.url, self._timeouts
        timeouts = replace(given, connect=min(given.connect, PATIENCE), reply=min(given.reply, PATIENCE))

        def connection(sentinel: str) -> Any:
            retry, of_sentinel = redis.retry.Retry(NoBackoff(), 0), target_of(url).url(sentinel, sentinel=True)
            read = _redis_pool(redis.ConnectionPool, retry, of_sentinel, timeouts, 1)
            return Pool(read.connection_class, read.connection_kwargs, PoolLimit(1)).make()

        return events_of(url, service, connection)

    def unsent(self, node: str, error: Exception, *, reached: bool) -> Unsent:
        """Return the outcome of commands for a node to which there is no connection; restart the embedded server.

        ``reached`` says whether there was a connection before, so that the server may come back.
        """
        why: Exception = error
        try:
            if self.address is not None:
                self.address.revive()
        except OSError as failure:  # its folder is gone, say
            why = failure
        url = self._target.url(node) if self._target else self.shown
        reason, certain = tls.explained(why, url, reached=reached)
        causes = tls.causes_of(why)
        nowhere = not reached and (certain or any(isinstance(each, _NOWHERE) for each in causes))
        return Unsent(reason, hopeless=nowhere or any(isinstance(each, IMPOSSIBLE) for each in causes))

    def packed(self) -> Packed:
        """Return the server's address, for a filter that is opened anew; see ``Address.packed``.

        Raises:
            TypeError: a client was given.
        """
        if self.address is None:
            text = "a filter that was opened with a client object is neither pickled nor copied"
            advice = "open it with the server's address (redis='redis://…'), or anew in the other process"
            raise TypeError(f"{text}: {advice}")
        made = self.address.packed()
        return replace(made, url=with_options(made.url, *self._options)) if made.url else made

    def close(self) -> None:
        """Leave the embedded server, if it is that."""
        if self.address is not None:
            self.address.close()


def _checked_options(wait_replicas: int, reads: str) -> tuple[int, str]:
    check_least("wait_replicas", wait_replicas, 0)
    if reads not in READS:
        raise ValueError(f"reads is {' or '.join(READS)} and not {reads!r}")
    return wait_replicas, reads


def check_url(url: str) -> None:
    """Check that a URL can be an address of a server; nothing is connected.

    Raises:
        ValueError: it cannot.
    """
    target = _parsed(url)
    nodes = [(each, target.kind == "sentinel") for each in target.hosts] if target.kind != "server" else []
    for node, sentinel in [*nodes, ("", False)]:
        made = _redis_pool(redis.ConnectionPool, None, target.url(node, sentinel=sentinel), Timeouts(), CONNECTIONS)
        _check_options(made, target.sentinel_query if sentinel else target.query)


def _check_options(pool: Any, query: str) -> None:
    """Check that redis-py knows all options of an address, of which it tells only as it connects."""
    if "@" in query:  # the rest of a password is there
        raise _no_url()
    unknown = sorted(name for name in parse_qs(query) if name not in _known_options(pool.connection_class))
    if unknown:
        text = f"{', '.join(unknown)}: there is no such option of an address"
        raise OptionError(f"{text}; for TLS it begins with rediss://" if {"tls", "ssl"} & {*unknown} else text)


@functools.cache
def _known_options(kind: type) -> set[str]:
    """Return the options of a kind of redis-py's connections, and those of a pool."""
    inits = (inspect.signature(each.__init__) for each in kind.__mro__)  # type: ignore[misc]
    return {name for init in inits for name in init.parameters} - {"self", "args", "kwargs"} | {"max_connections"}


def _parsed(url: str) -> Target:
    try:
        parts = split(url)
        if parts.scheme == "unix" or "@" not in f"{parts.path}{parts.fragment}":  # or the rest of a password is there
            return target_of(url)
    except OptionError:
        raise
    except ValueError:  # of the standard library, whose text may have a part of the password
        pass
    raise _no_url()


def _no_url() -> ValueError:
    text = "the server's address is a URL such as redis://localhost:6379/0, rediss:// or unix:///path"
    return ValueError(f"{text}; in a password / and @ are written %2F and %40")


def _redis_pool(kind: Any, retry: Any, url: str, timeouts: Timeouts, connections: int) -> Any:
    """Make a pool of connections; nothing is connected. The URL's query overrides the other options."""
    url, read = tls.taken(url)
    try:
        without_password(url)  # finds what is wrong, too
        return kind.from_url(
            url,
            max_connections=connections,
            socket_connect_timeout=timeouts.connect,
            socket_timeout=timeouts.reply,
            retry=retry,
            protocol=QUIET,
            **read,
        )
    except (ValueError, TypeError):  # whose text may have a part of the password, so it is no context either
        pass
    raise _no_url()


def _checked_connections(given: object, connections: int | None) -> int:
    if connections is None:
        return CONNECTIONS
    if not isinstance(given, Address):
        raise TypeError("connections is for a server's address: a client that is given has its own max_connections")
    check_least("connections", connections, 1)
    return connections


def _nodes_of(client: Any) -> Sequence[str]:
    """Return the nodes that a client of a Redis Cluster knows, or those that it was given, as ``host:port``."""
    nodes = client.get_nodes() or client.nodes_manager.startup_nodes.values()
    return [f"{each.host}:{each.port}" for each in nodes]


def _shown_client(client: Any) -> str:
    """Describe a client that the caller made."""
    if hasattr(client, "get_nodes"):
        return f"redis+cluster://{','.join(sorted(_nodes_of(client)))}/0"
    known = {"host": "localhost", "port": 6379, "db": 0} | client.connection_pool.connection_kwargs
    secure = any("SSL" in each.__name__ for each in client.connection_pool.connection_class.__mro__)
    scheme = "rediss" if secure else "redis"
    user = f"{quote(known['username'], safe='')}@" if known.get("username") else ""
    url = "unix://{path}?db={db}" if "path" in known else scheme + "://" + user + "{host}:{port}/{db}"
    return without_password(url.format(**known))


def _no_client(given: object, wanted: str) -> TypeError:
    """Return the error for an object that is no client for here; it names the address of another library's client."""
    kind, known = type(given), getattr(getattr(given, "connection_pool", None), "connection_kwargs", None)
    text = f"redis= takes a URL or a {wanted} and not {kind.__module__}.{kind.__qualname__}"
    if not isinstance(known, dict):
        return TypeError(text)
    password = ", with its user and password" if known.get("password") else ""
    return TypeError(f"{text}: give the server's URL: redis={_shown_client(given)!r}{password}")
