"""The part of both clients that needs no server: a caller's options, attributes, and pickling."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self, TypeVar

from urifilter_redis.checks import check_flag
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.near_cache import NearCacheInfo, NearCacheSettings
from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.engine.session import Restored, Session
from urifilter_redis.engine.steps import Flow, Timeouts
from urifilter_redis.errors import AnswerLost
from urifilter_redis.flows.items import unresolved
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.protocol.config import Config, FilterSettings, Settings
from urifilter_redis.protocol.keys import DEFAULT_PREFIX, FilterKeys
from urifilter_redis.protocol.meta import View
from urifilter_redis.storage.backends import ARCHIVE_VARIABLE, open_backend
from urifilter_redis.transport.url import READS, Address, Packed

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a caller says of a filter beside its settings, in the order of the arguments of ``AsyncUriFilter.open``.

    Attributes:
        near_cache: what both arguments about the near cache say.
        name, archive, redis, prefix, timeouts, connections, wait_replicas, reads, rotate, coalesce: see there.

    Raises:
        TypeError, ValueError: an option is not possible.
    """

    name: str
    archive: Any = None
    redis: Any = None
    prefix: str = DEFAULT_PREFIX
    timeouts: Timeouts | None = None
    connections: int | None = None
    wait_replicas: int = 0
    reads: str = READS[0]
    rotate: str | None = None
    near_cache: NearCacheSettings = field(default_factory=NearCacheSettings)
    coalesce: bool = True

    def __post_init__(self) -> None:
        self.session("")  # checks them before anything is connected
        check_flag("coalesce", self.coalesce)

    def connector(self, kind: Callable[..., C], given: Any) -> C:
        """Make a connector to an ``Address``, or by a client of redis-py."""
        timeouts = Timeouts.checked(self.timeouts)
        return kind(given, timeouts, self.connections, self.wait_replicas, self.reads)

    def session(self, server: str, backend: Backend | None = None) -> Session:
        """Make a session that is not opened yet; ``server`` is the address without its password."""
        return Session(
            FilterKeys(self.prefix, self.name),
            server,
            Timeouts.checked(self.timeouts),
            backend,
            insists=self.archive is not None,
            rotation_timer=RotationTimer(self.rotate),
            near_cache=self.near_cache,
        )


def with_settings(create: F) -> F:
    """Name the settings in the signature that ``help`` shows; type checkers know them by ``FilterSettings``."""
    signature = inspect.signature(create)
    cls, name, *more, _ = signature.parameters.values()
    settings = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=each.type,
        )
        for each in fields(Settings)
    ]
    create.__signature__ = signature.replace(parameters=[cls, name, *settings, *more])  # type: ignore[attr-defined]
    return create


class BaseClient:
    """The attributes of both clients. The first call of an unpickled filter, or of a copy, opens it."""

    _asynchronous = False
    _closed = False
    _kind: Callable[..., Any]  # of connectors

    def __init__(
        self, options: ClientOptions, connector: Any, session: Session, unopened: PackedFilter | None = None
    ) -> None:
        self._options, self._connector, self._session, self._unopened = options, connector, session, unopened
        self._claimed: weakref.WeakSet[Any] = weakref.WeakSet()  # claims, whose beats end with this filter

    def __repr__(self) -> str:
        config = self._session.config
        state = "closed" if self._closed else f"{config.layout}, {config.retention}"
        return f"<{type(self).__name__} {self.name} on {self.server}: {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._unpacked, (self._packed().without_secrets(),)

    def __copy__(self) -> Self:
        return self._unpacked(self._packed())

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()

    @classmethod
    def _unpacked(cls, packed: PackedFilter) -> Self:
        """Make the filter without opening or connecting it."""
        options, session = packed.options, packed.options.session(packed.options.redis.shown)
        session.insists = packed.insists
        session.assume(packed.config, packed.view)
        return cls(options, options.connector(cls._kind, Address(options.redis)), session, packed)

    def _check_open(self) -> None:
        """Raise ValueError if the filter was closed, as a closed file does."""
        if self._closed:
            raise ValueError(f"filter {self.name!r} is closed: open it again")

    def _tell_claims(self, total: int) -> None:
        """Tell all claims of this client how many items anybody has in flight."""
        for each in list(self._claimed):
            each._holdings.note_total(total)  # noqa: SLF001 - parts of one client

    def _packed(self) -> PackedFilter:
        if self._unopened is not None:
            return self._unopened
        session, backend = self._session, self._session.backend
        archive = None if backend is None else Packed(backend.url, backend.shown, ARCHIVE_VARIABLE)
        options = replace(self._options, redis=self._connector.packed(), archive=archive)
        return PackedFilter(options, session.insists, session.config, session.view(0))

    def _opened_first(self, flow: Flow[T]) -> Flow[T]:
        """Open an unpickled filter, then run a flow."""
        unopened, session = self._unopened, self._session
        if unopened is not None:
            archive = unopened.options.archive
            if archive is not None and session.backend is None:
                session.backend = open_backend(archive.unpacked(), asynchronous=self._asynchronous)
            self._connector.equip(session)
            yield from open_(session, unopened.config.uid)
            self._unopened = None
        return (yield from flow)

    @property
    def name(self) -> str:
        """The filter's name.

        Example:
            >>> news.name
            'news'
        """
        return self._session.keys.name

    @property
    def server(self) -> str:
        """The server's address, without its password.

        Example:
            >>> news.server
            'redis://localhost:6379/0'
        """
        return self._session.server

    @property
    def config(self) -> Config:
        """The settings and geometry that were fixed at creation.

        Example:
            >>> news.config.layout
            'blocked'
        """
        return self._session.config

    @property
    def settings(self) -> FilterSettings:
        """The arguments of ``create`` for another filter of the same geometry, hash and seed.

        Example:
            >>> news.settings["capacity"]
            1000
        """
        return self._session.config.settings

    def view(self, shard: int) -> View:
        """Return the live slices of a shard, as far as this client knows.

        Args:
            shard: its number, from 0.

        Example:
            >>> [each.name for each in news.view(0).slices]
            ['today']
        """
        return self._session.view(shard)

    @property
    def forbidden(self) -> tuple[str, ...]:
        """The server's commands that some methods need and this user may not run, as opening the filter found them.

        Example:
            >>> news.forbidden
            ()
        """
        return self._session.forbidden

    @property
    def restored(self) -> Restored | None:
        """The part of the filter that opening it brought back from its archive; None if nothing.

        Example:
            >>> news.restored is None
            True
        """
        return self._session.restored

    @property
    def near_cache(self) -> NearCacheInfo | None:
        """The use of this object's near cache so far; None if it has none.

        It has none unless ``near_cache=`` asked for one, and never for a filter whose items expire after they were last
        seen.

        Example:
            >>> news.near_cache is None
            True
        """
        return None if self._session.near is None else self._session.near.info

    @property
    def on_progress(self) -> Callable[[int, int], object]:
        """A function that is called with (done, total) as a rotation, restore or union goes on; for a progress bar.

        Example:
            >>> news.on_progress = lambda done, total: print(f"{done} of {total}")
        """
        return self._session.report

    @on_progress.setter
    def on_progress(self, report: Callable[[int, int], object]) -> None:
        if not callable(report):
            raise TypeError(f"on_progress is a function of (done, total), and not {report!r}")
        self._session.report = report

    @property
    def unresolved(self) -> list[AnswerLost]:
        """Calls that were interrupted before all answers were there; pass one as ``retry=`` to get them.

        Example:
            >>> news.unresolved
            []
        """
        return unresolved(self._session)


@dataclass(frozen=True, slots=True)
class PackedFilter:
    """The state of an open filter that goes through pickle; the filter is opened anew with the same settings.

    Attributes:
        options: the caller's; the addresses of the server, and of the archive if there is one, are ``Packed``.
        insists: whether the caller named the archive, and not the environment.
        config: the configuration; the filter must still have its uid.
        view: the live slices as last known.
    """

    options: ClientOptions
    insists: bool
    config: Config
    view: View

    def without_secrets(self) -> PackedFilter:
        """Return a copy that may leave this process."""
        redis, archive = self.options.redis.without_secrets(), self.options.archive
        bare = replace(self.options, redis=redis, archive=None if archive is None else archive.without_secrets())
        return replace(self, options=bare)
