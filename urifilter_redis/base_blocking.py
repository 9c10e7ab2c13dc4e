"""The part of the blocking client that has no awaited twin: connecting, driving, closing; calls without a client."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Self, TypeVar

import redis as redis_py

from urifilter_redis.base_client import BaseClient, ClientOptions
from urifilter_redis.engine.batch import CONTAINS, Key, Method, opened_up
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow, Timeouts
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows import dropping, items, lifecycle
from urifilter_redis.flows.auto_rotate import leave
from urifilter_redis.flows.info import inserted
from urifilter_redis.protocol.keys import DEFAULT_PREFIX, check_name
from urifilter_redis.storage.backends import named_backend
from urifilter_redis.transport.connections import Connector
from urifilter_redis.transport.url import Address

T = TypeVar("T")


def connect(options: ClientOptions, *, alone: bool = False) -> tuple[Connector, Session]:
    """Return a connector and a session without opening a filter; ``alone``: for the server alone."""
    backend, redis = named_backend(options.archive), options.redis
    connector = options.connector(Connector, Address(redis) if redis is None or isinstance(redis, str) else redis)
    session = options.session(connector.shown, backend)
    session.where = connector.shown if alone else session.where
    connector.equip(session)
    return connector, session


def _close(session: Session, connector: Connector) -> None:
    if session.backend is not None:
        drive(session.backend.close(), connector)
    connector.close()


class BlockingBaseClient(BaseClient):
    """Drives flows with blocking I/O."""

    _kind = Connector
    _connector: Connector

    @classmethod
    def _begin(cls, flow: Callable[[Session], Flow[object]], options: ClientOptions) -> Self:
        connector, session = connect(options)
        opened = cls(options, connector, session)
        try:
            opened._run(flow(session))
        except BaseException:
            opened._end()
            raise
        return opened

    def _run(self, flow: Flow[T]) -> T:
        self._check_open()
        return self._drive(flow)

    def _beat(self, flow: Flow[None]) -> None:
        """Run a flow in a background thread, without the checks of the main thread."""
        self._check_open()
        drive(flow, self._connector)

    def _drive(self, flow: Flow[T]) -> T:
        flow = flow if self._unopened is None else self._opened_first(flow)
        session = self._session
        return drive(flow, self._connector, session.check and session.check_step)

    def _finish(self, made: Callable[[], Flow[object]]) -> None:
        self._drive(made())

    def _ask(  # noqa: PLR0913, PLR0917 - what a caller may say
        self,
        method: Method[T],
        objects: Sequence[object],
        max_age: int | None = None,
        retry: UriFilterError | None = None,
        key: Key = None,
        call_key: str | None = None,
    ) -> T:
        """Ask about items; return the method's result once all answers are there."""
        self._check_open()
        batch = items.question(self._session, method, objects, max_age, retry, key, call_key)
        pending = self._session.pending
        pending.begin(batch)
        try:
            return pending.answered(batch, method.result(self._drive(items.resolve(self._session, batch))))
        except BaseException as error:
            pending.failed(batch, error)
            raise

    def _ask_singly(
        self, method: Method[T], uri: object, max_age: int | None = None, retry: UriFilterError | None = None
    ) -> T:
        return self._ask(method, [uri], max_age, retry)

    def __contains__(self, uri: Hashable) -> bool:
        return self._ask(CONTAINS, [uri])

    def __len__(self) -> int:
        """Return how many items were answered "new" and have not expired, as ``inserted`` does.

        It asks the server once, for a small field of each shard. ``bool(news)`` is True and asks nothing.
        """
        return self._run(inserted(self._session))

    def __bool__(self) -> bool:
        return True

    def _end(self) -> None:
        """Take no more calls; leave the filter, and close the connections."""
        self._closed = True
        try:
            for each in list(self._claimed):
                each._end_beating()  # noqa: SLF001 - parts of one client
            drive(leave(self._session), self._connector)
        finally:
            _close(self._session, self._connector)


def windows(uris: Iterable[T]) -> Iterator[list[T]]:
    """Cut a stream into lists of ``items.WINDOW`` items."""
    stream = iter(opened_up(uris))
    while window := list(itertools.islice(stream, items.WINDOW)):
        yield window


def run(  # noqa: PLR0913 - where the filter is
    flow: Callable[[Session], Flow[T]],
    name: str | None = None,
    *,
    archive: str | None = None,
    redis: str | redis_py.Redis | redis_py.RedisCluster | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeouts: Timeouts | None = None,
) -> T:
    """Connect, run one flow, and close, without opening a filter; name None: for the server alone."""
    options = ClientOptions("any" if name is None else name, archive, redis, prefix, timeouts)
    connector, session = connect(options, alone=name is None)
    try:
        return drive(flow(session), connector)
    finally:
        _close(session, connector)


def list_filters(
    *,
    redis: str | redis_py.Redis | redis_py.RedisCluster | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeouts: Timeouts | None = None,
) -> list[str]:
    """Return the names of the filters on a server, sorted.

    Args:
        redis: a URL, a ``redis.Redis`` or a ``redis.RedisCluster``; None:
            ``URIFILTER_REDIS_URL``, else the embedded server.
        prefix: the beginning of all keys.
        timeouts: how long to wait for the server.

    Raises:
        ServerUnavailable: the server cannot be reached, or refuses the connection.

    Example:
        >>> list_filters()
        ['news']
    """
    return run(lifecycle.names, redis=redis, prefix=prefix, timeouts=timeouts)


def drop_filter(  # noqa: PLR0913 - likewise
    name: str,
    *,
    keep_archive: bool = False,
    archive: str | None = None,
    redis: str | redis_py.Redis | redis_py.RedisCluster | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeouts: Timeouts | None = None,
) -> bool:
    """Remove a filter, also a damaged one that cannot be opened; return whether it was there.

    Args:
        name: the filter's name.
        keep_archive: keep the filter in its archive, so that it can be restored.
        archive: the filter's archive; None: ``URIFILTER_ARCHIVE``, else no archive.
        redis: a URL, a ``redis.Redis`` or a ``redis.RedisCluster``; None:
            ``URIFILTER_REDIS_URL``, else the embedded server.
        prefix: the beginning of all keys.
        timeouts: how long to wait for the server.

    Raises:
        ArchiveMissing: the filter has an archive, and the caller has neither named it nor set ``keep_archive``.
        ServerUnavailable: the server cannot be reached, or refuses the connection.

    Example:
        >>> drop_filter("news")
        True
        >>> drop_filter("news")
        False
    """
    check_name(name)
    flow = functools.partial(dropping.drop, keep_archive=keep_archive)
    return run(flow, name, archive=archive, redis=redis, prefix=prefix, timeouts=timeouts)
