"""The part of both clients that needs no server: attributes, and pickling."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from urifilter_redis.engine.near_cache import NearCacheInfo, NearCacheSettings
from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.engine.session import Restored, Session
from urifilter_redis.engine.steps import Flow, Timeouts
from urifilter_redis.errors import AnswerLost
from urifilter_redis.flows.items import unresolved
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.protocol.config import Config, FilterSettings
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import View
from urifilter_redis.storage.backends import ARCHIVE_VARIABLE, open_backend
from urifilter_redis.transport.url import Packed

T = TypeVar("T")


class BaseClient:
    """The attributes of both clients. The first call of an unpickled filter, or of a copy, opens it."""

    _asynchronous = False
    _closed = False
    _coalesces = True

    def __init__(self, connector: Any, session: Session, unopened: PackedFilter | None = None) -> None:
        self._connector, self._session, self._unopened = connector, session, unopened
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
        raise NotImplementedError

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
        connector = self._connector
        return PackedFilter.of(self._session, connector.packed(), connector.connections, coalesce=self._coalesces)

    def _opened_first(self, flow: Flow[T]) -> Flow[T]:
        """Open an unpickled filter, then run a flow."""
        unopened, session = self._unopened, self._session
        if unopened is not None:
            if unopened.archive is not None and session.backend is None:
                session.backend = open_backend(unopened.archive.unpacked(), asynchronous=self._asynchronous)
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
        server: the server's address.
        archive: the archive's address, if one was named.
        insists: whether the call named the archive.
        config: the configuration; the filter must still have its uid.
        view: the live slices as last known.
        near_cache: the settings of a near cache, without its content.
        name, prefix, timeouts, connections, rotate, coalesce: see ``AsyncUriFilter.create``.
    """

    name: str
    prefix: str
    server: Packed
    archive: Packed | None
    insists: bool
    timeouts: Timeouts
    connections: int | None
    config: Config
    view: View
    rotate: str | None
    near_cache: NearCacheSettings
    coalesce: bool = True

    @classmethod
    def of(cls, session: Session, server: Packed, connections: int | None, *, coalesce: bool) -> PackedFilter:
        """Pack a filter, with all secrets."""
        backend, keys = session.backend, session.keys
        archive = None if backend is None else Packed(backend.url, backend.shown, ARCHIVE_VARIABLE)
        where = keys.name, keys.prefix, server, archive, session.insists, session.timeouts, connections
        rotate, near_cache = session.rotation_timer.rotate, session.near_cache
        return cls(*where, session.config, session.view(0), rotate, near_cache, coalesce)

    def without_secrets(self) -> PackedFilter:
        """Return a copy that may leave this process."""
        archive = None if self.archive is None else self.archive.without_secrets()
        return replace(self, server=self.server.without_secrets(), archive=archive)

    def session(self) -> Session:
        """Return a session that is not opened yet."""
        session = Session(
            FilterKeys(self.prefix, self.name),
            self.server.shown,
            self.timeouts,
            insists=self.insists,
            rotation_timer=RotationTimer(self.rotate),
            near_cache=self.near_cache,
        )
        session.assume(self.config, self.view)
        return session
