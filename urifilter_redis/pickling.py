"""The state of an open filter that goes through pickle: its addresses, settings and identity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.engine.session import Session
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.storage.backends import ARCHIVE_VARIABLE
from urifilter_redis.transport.url import Packed

if TYPE_CHECKING:
    from urifilter_redis.engine.near_cache import NearCacheSettings
    from urifilter_redis.engine.steps import Timeouts
    from urifilter_redis.protocol.config import Config
    from urifilter_redis.protocol.meta import View

__all__ = ["PackedFilter"]


@dataclass(frozen=True, slots=True)
class PackedFilter:
    """A filter to be opened anew, with the same settings.

    Attributes:
        name: of the filter; prefix: of its keys.
        server: its address; archive: its archive's, if one was named.
        insists: the archive was named in the call.
        timeouts: how long to wait; connections: how many there may be.
        config: the configuration; the filter must still have its uid; view: the live slices as last known.
        rotate: see ``UriFilter.create``.
        near_cache: the settings of a near cache; its content is not pickled.
        coalesce: see ``AsyncUriFilter.create``.
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
        more = (
            session.insists,
            session.timeouts,
            connections,
            session.config,
            session.view(0),
            session.rotation_timer.rotate,
            session.near_cache,
            coalesce,
        )
        return cls(keys.name, keys.prefix, server, archive, *more)

    def without_secrets(self) -> PackedFilter:
        """Return a copy that may leave this process."""
        archive = None if self.archive is None else self.archive.without_secrets()
        return replace(self, server=self.server.without_secrets(), archive=archive)

    def session(self) -> Session:
        """Return a session that is not opened yet."""
        keys = FilterKeys(self.prefix, self.name)
        rotation_timer = RotationTimer(self.rotate)
        session = Session(keys, self.server.shown, self.timeouts, insists=self.insists, rotation_timer=rotation_timer)
        session.near_cache = self.near_cache
        session.assume(self.config, self.view)
        return session
