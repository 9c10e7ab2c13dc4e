"""The filters that the service has open, over one connector; each is made or restored on its first use."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from redis.exceptions import RedisError

from urifilter_redis.archive.maintenance import names as registered_names
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.driver import drive_async
from urifilter_redis.engine.queries import ask, server_time
from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow, Timeouts
from urifilter_redis.errors import (
    ArchiveCorrupt,
    ArchiveError,
    ConfigMismatch,
    FilterNotFound,
    Restoring,
    ServerUnavailable,
    SliceLost,
    UriFilterError,
)
from urifilter_redis.flows import lifecycle
from urifilter_redis.flows.auto_rotate import leave
from urifilter_redis.flows.info import FilterInfo, info
from urifilter_redis.flows.items import answer
from urifilter_redis.flows.restore import restoring
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.keys import DEFAULT_PREFIX, FilterKeys
from urifilter_redis.service.settings import ServiceSettings
from urifilter_redis.storage.backends import named_backend
from urifilter_redis.transport.connections import AsyncConnector, SharedConnector
from urifilter_redis.transport.url import Address

log = logging.getLogger("urifilter_redis.service")

T = TypeVar("T")

#: Counting bits may take this share of the time. A count is at most so many seconds old.
MEASURING = 0.02
LONGEST_AGE = 30.0

#: Seconds that a request waits for a filter that is being opened; the wait for one server is shorter.
LONGEST_OPENING = 5.0

#: Seconds for which calls are repeated behind Sentinels and on a Redis Cluster: proxies wait for 30.
PATIENCE = 20.0


#: Seconds between two questions to an archive that is away.
PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The state of a filter; times but ``at`` are of this process's monotonic clock."""

    info: FilterInfo
    at: float  # when it was read, in seconds since 1970, by Redis
    taken: float  # the same moment
    began: float  # when its reading began: what was read may be as old
    until: float  # until then the state is shown without reading it again
    lately: float  # until then a reading would take more than its share of the time


class Filters:
    """Filters by name, for concurrent tasks of one event loop.

    Attributes:
        wanted: the filters of the settings, which are made if they do not exist.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all that its sessions need
        self,
        connector: SharedConnector,
        backend: Backend | None = None,
        wanted: dict[str, Settings] | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
        large: Collection[str] = (),
        rotate: str | None = None,
    ) -> None:
        """Hold no filter yet; nothing is sent. ``backend`` is the archive; for the rest see ``connect``."""
        self.wanted = wanted or {}
        self._unrestored: dict[str, Session] = {}  # opened without their archive
        self._connector, self._prefix = connector, prefix
        self._archive = None if backend is None else ArchiveWatch(backend, connector, self._open_again)
        self._timeouts, self._large, self._rotate = timeouts or Timeouts(), large, rotate
        self._server = Session(FilterKeys(prefix, "any"), connector.shown, self._timeouts, where="Redis")
        self._equip(self._server)
        self._sessions: dict[str, asyncio.Task[Session]] = {}
        self._measured: dict[str, asyncio.Task[Measured]] = {}
        self._listed: set[str] = set()  # by the last lists of Redis and of the archive

    async def run(self, name: str, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow on a filter; raises as the flow, or FilterNotFound.

        If the filter is not the one that was opened, or not whole, and nothing was done, it is opened again and the
        flow runs once more.
        """
        session = await self._session(name)
        try:
            return await drive_async(flow(session), self._connector)
        except (FilterNotFound, ConfigMismatch, SliceLost) as error:
            if await self._session(name) is session:
                del self._sessions[name]
                self._measured.pop(name, None)
            if error.answers is not None and any(each is not None for each in error.answers):
                raise
        return await drive_async(flow(await self._session(name)), self._connector)

    async def run_anew(self, name: str, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow on a session that has not opened its filter, which is opened anew afterwards."""
        session = self._session_of(name, None if self._archive is None else self._archive.backend)
        try:
            return await drive_async(flow(session), self._connector)
        finally:
            for known in (self._sessions, self._measured, self._unrestored):
                known.pop(name, None)

    async def measured(self, name: str) -> Measured:
        """Return the state of a filter; it is read seldom enough to cost the server little."""
        known = self._measured.get(name)
        if known is None or (known.done() and known.result().until < time.monotonic()):
            known = self._measured[name] = asyncio.create_task(self._measure(name))
            known.add_done_callback(functools.partial(_leave_out, self._measured, name))
        return await asyncio.shield(known)

    async def lately(self, name: str) -> Measured:
        """Return the state of a filter as it was at most half a minute ago, or longer if reading it takes long."""
        known = self._measured.get(name)
        if known is None or (known.done() and known.result().lately < time.monotonic()):
            return await self.measured(name)
        return await asyncio.shield(known)

    def measure_anew(self, name: str) -> None:
        """Read the state of a filter when it is asked for next, because an action has changed it."""
        self._measured.pop(name, None)

    async def of_server(self, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow that is about Redis, and about no filter; raises as the flow."""
        return await drive_async(flow(self._server), self._connector)

    def problem_of(self, name: str) -> str:
        """Return the problem of a filter that is answered; empty if there is none."""
        if name in self._unrestored:
            return "its archive is away, or does not have it: it is answered from Redis alone, and is not restored"
        opened = self._sessions.get(name)
        if self._archive is None or not self._archive.away or opened is None or not _has_opened(opened):
            return ""
        found = opened.result().config.has_backend
        return "its archive is away: it is answered from Redis, and nothing is written back" if found else ""

    def meta_of(self, name: str) -> str:
        """Return the key of a filter's ``meta``, for redis-cli."""
        return FilterKeys(self._prefix, name).shard(0).meta

    async def names(self) -> list[str]:
        """List the filters of Redis, of the archive (while it is away: of its last answer) and of the settings."""
        self._listed = await self.in_redis() | await self.in_archive()
        return sorted(self._listed)

    def knows(self, name: str) -> bool:
        """Whether there was a filter of this name when this was asked last; nothing is sent."""
        opened = self._sessions.get(name)
        return name in self._listed or name in self.wanted or (opened is not None and _has_opened(opened))

    async def in_redis(self) -> set[str]:
        """Return the names of the filters in Redis, and of those of the settings."""
        return {*await self.of_server(lifecycle.names), *self.wanted}

    async def in_archive(self) -> set[str]:
        """Return the names of the filters in the archive."""
        return set() if self._archive is None else set(await self._archive.names())

    @property
    def archive_up(self) -> int | None:
        """1 if the archive answered the last question, 0 if it did not, None if there is no archive."""
        return None if self._archive is None else int(self._archive.answered)

    @property
    def queued(self) -> int:
        """The requests whose commands wait for a pipeline to Redis."""
        return self._connector.waiting

    async def restoring(self, name: str) -> tuple[int, int] | None:
        """Return how many shards of a filter are being restored, and how many it has; None: Redis has none of it."""
        return await drive_async(restoring(self._session_of(name, None)), self._connector)

    async def open_all(self) -> None:
        """Open all filters, those of the settings first; a problem of any other filter goes into the log.

        Raises:
            UriFilterError: the error of the first filter of the settings that does not open.
            ServerUnavailable: Redis is away.
        """
        for name in self.wanted:
            await self._session(name)
        for name in await self.names():
            try:
                await self._session(name)
            except ServerUnavailable:
                raise
            except UriFilterError as error:
                log.warning("not served: %s", error)

    async def ping(self) -> None:
        """Check that Redis and the filters of the settings answer; raises the error of the first that does not."""
        await drive_async(ask(self._server, ("PING",)), self._connector)
        for name in self.wanted:
            await self.run(name, lambda session: answer(session, "contains", [""]))

    async def close(self) -> None:
        """Close the connections; a rotation that is under way goes on before, for a second at most."""
        opened = [task.result() for task in self._sessions.values() if _has_opened(task)]
        await asyncio.gather(*(drive_async(leave(session), self._connector) for session in opened))
        for task in (*self._sessions.values(), *self._measured.values()):
            task.cancel()
        if self._archive is not None:
            await self._archive.close()
        await self._connector.close()

    async def _session(self, name: str) -> Session:
        """Return the session of an open filter; tasks that ask for the same filter wait for the one that opens it."""
        opening = self._sessions.get(name)
        if opening is None:
            opening = self._sessions[name] = asyncio.create_task(self._open(name))
            opening.add_done_callback(functools.partial(_leave_out, self._sessions, name))
        if opening.done():
            return opening.result()
        try:
            async with asyncio.timeout(LONGEST_OPENING):
                return await asyncio.shield(opening)
        except TimeoutError:
            raise Restoring(f"filter {name!r} is being opened or restored: ask again later") from None

    async def _open(self, name: str) -> Session:
        """Open, make or restore a filter; if its archive is away, open the filter that Redis has."""
        archive = self._archive
        if archive is None:
            return await self._opened(name, None)
        error: ArchiveError = ArchiveError(archive.away)
        if not archive.away:
            try:
                session = await self._opened(name, archive.backend)
            except ArchiveError as failure:
                if not is_away(failure):
                    raise
                archive.miss(error := failure)
            else:
                self._unrestored.pop(name, None)
                return session
        return await self._open_without(name, error)

    async def _open_without(self, name: str, error: ArchiveError) -> Session:
        """Open what Redis has of a filter, its archive being away; raise ``error`` if Redis does not have it whole."""
        session, settings = self._session_of(name, None), self.wanted.get(name)
        try:
            await drive_async(lifecycle.open_(session), self._connector)
        except ServerUnavailable:
            raise
        except UriFilterError:
            raise error from None  # Redis lacks the filter, or parts of it
        if settings is not None:
            session.config.check(settings, session.where)
        if session.config.has_backend:
            if name not in self._unrestored:
                log.warning("filter %r is answered from Redis alone: %s", name, error)
            self._unrestored[name] = session
        return session

    async def _opened(self, name: str, backend: Backend | None) -> Session:
        session, settings = self._session_of(name, backend), self.wanted.get(name)
        if settings is None:
            flow = lifecycle.open_(session)
        else:
            flow = lifecycle.create(session, settings, large=name in self._large)
        await drive_async(flow, self._connector)
        return session

    def _session_of(self, name: str, backend: Backend | None) -> Session:
        keys, where = FilterKeys(self._prefix, name), f"filter {name!r}"  # clients need not know where Redis is
        shown, rotation_timer = self._connector.shown, RotationTimer(self._rotate)
        session = Session(
            keys, shown, self._timeouts, backend, where=where, discreet=True, rotation_timer=rotation_timer
        )
        self._equip(session)
        return session

    def _equip(self, session: Session) -> None:
        session.patience = PATIENCE
        self._connector.equip(session)

    async def _open_again(self) -> bool:
        """Open the filters again that were opened without their archive; return whether all have opened."""
        for name in list(self._unrestored):
            opening = asyncio.create_task(self._open(name))
            try:
                await opening
            except UriFilterError as error:
                log.warning("not served: %s", error)
                self._unrestored.pop(name, None)
                self._sessions.pop(name, None)
            else:
                self._sessions[name] = opening
        return not self._unrestored

    async def _measure(self, name: str) -> Measured:
        began = time.monotonic()
        found = await self.run(name, info)
        at = await self.run(name, server_time) / 1000  # the clock may have been set since the filter was opened
        now = time.monotonic()
        age = (now - began) / MEASURING
        return Measured(found, at, now, began, now + min(age, LONGEST_AGE), now + max(age, LONGEST_AGE))


def _leave_out(tasks: dict[str, asyncio.Task[T]], name: str, task: asyncio.Task[T]) -> None:
    """Drop a task that failed, so that the next caller tries again."""
    if (task.cancelled() or task.exception() is not None) and tasks.get(name) is task:
        del tasks[name]


def _has_opened(task: asyncio.Task[Session]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def is_away(error: Exception) -> bool:
    """Whether an archive failed or cannot be reached; a damaged archive is not away."""
    return isinstance(error, ArchiveError) and not isinstance(error, ArchiveCorrupt)


class ArchiveWatch:
    """Asks an archive for the names of its filters, and notices when the archive is away and when it is back.

    ``away`` says why the archive cannot be asked, and ``answered`` whether it has answered the last question.
    """

    def __init__(self, backend: Backend, connector: SharedConnector, again: Callable[[], Awaitable[bool]]) -> None:
        """Watch an archive; ``again`` opens the filters that missed it, and returns whether it could open all."""
        self.backend, self.away, self.answered = backend, "", False
        self._connector, self._again = connector, again
        self._known: list[str] = []
        self._asking: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def names(self) -> list[str]:
        """Return the filters that the archive has; while it is away, those of its last answer."""
        if not self.away:
            self._asking = self._asking or asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)  # a waiting request may be cancelled
        return self._known

    def miss(self, error: ArchiveError) -> None:
        """Note that a filter missed the archive; ``again`` is called when the archive is back."""
        if type(error) is ArchiveError:
            self._note(str(error))
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    async def close(self) -> None:
        """Stop asking, and close the archive."""
        for task in filter(None, (self._asking, self._waiting)):
            task.cancel()
        await drive_async(self.backend.close(), self._connector)

    async def _ask(self) -> None:
        try:
            self._known = await drive_async(registered_names(self.backend), self._connector)
        except ArchiveError as error:
            self.miss(error)
            self._note(str(error))
        else:
            if self.away:
                log.warning("the archive is back")
            self.away, self.answered = "", True
        finally:
            self._asking = None

    def _note(self, away: str) -> None:
        if not self.away:
            log.warning("the archive cannot be asked, so filters are answered from Redis alone: %s", away)
        self.away, self.answered = away, False

    async def _wait(self) -> None:
        done = False
        while not done:
            await asyncio.sleep(PAUSE)
            await self._ask()
            done = not self.away and await self._again()
        self._waiting = None


async def connect(settings: ServiceSettings, note: Callable[[RedisError], object] = lambda _: None) -> Filters:
    """Return the filters of the settings, none opened yet; ``note`` is called with each error that Redis answers.

    Raises:
        ServerUnavailable: the embedded server does not start.
    """
    timeouts = Timeouts(total=settings.timeout)
    address = await asyncio.to_thread(Address, settings.redis_url)
    one = AsyncConnector(address, timeouts)
    connector = SharedConnector(one, one.patience, note)
    wanted = {name: each.settings() for name, each in settings.filters.items()}
    large = {name for name, each in settings.filters.items() if each.large}
    backend = named_backend(settings.archive or "", asynchronous=True)
    return Filters(connector, backend, wanted, settings.prefix, timeouts, large, settings.rotate)


def try_all(settings: ServiceSettings) -> None:
    """Make, restore or open all filters once; raises the error of the first of the settings that does not open."""

    async def open_all() -> None:
        filters = await connect(settings)
        try:
            await filters.open_all()
        finally:
            await filters.close()

    asyncio.run(open_all())
