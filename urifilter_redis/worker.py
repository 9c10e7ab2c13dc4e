"""The worker: rotates and checkpoints filters on time, and restores filters that a server has lost.

Any number of workers may run. A lease in ``meta`` lets one worker at a time serve a filter. The lease only saves work:
the fences of the scripts and of the archive's documents keep two workers from harming each other.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from urifilter_redis.archive.maintenance import names as registered_names
from urifilter_redis.archive.maintenance import not_kept
from urifilter_redis.base_blocking import connect, list_filters
from urifilter_redis.base_client import ClientOptions
from urifilter_redis.bloom.retention import TIMED
from urifilter_redis.client import UriFilter
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.driver import drive
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows.auto_rotate import lease
from urifilter_redis.flows.lifecycle import open_
from urifilter_redis.protocol import calls
from urifilter_redis.protocol.keys import check_name
from urifilter_redis.transport.connections import Connector

log = logging.getLogger("urifilter_redis.worker")

#: The longest time between two rounds of a worker, seconds.
LONGEST_SLEEP = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """The work that a worker did for one filter; the attributes are the keys of its JSON.

    Attributes:
        filter: the filter's name; empty if the filters could not be listed.
        restored: the number of shards that were restored.
        epoch: the epoch after the rotation; None if no rotation was due.
        checkpoint: the number of the newest checkpoint, written now or still good; None if none was due.
        shards: the number of shards that the checkpoint wrote.
        size: bytes that the checkpoint wrote.
        problems: one text for each problem that did not stop the work.
        error: a text that says why the work stopped; None if it did not.
        busy: whether another worker serves the filter; rotation and checkpoint are left to that worker then.
    """

    filter: str
    restored: int = 0
    epoch: int | None = None
    checkpoint: int | None = None
    shards: int = 0
    size: int = 0
    problems: tuple[str, ...] = ()
    error: str | None = None
    busy: bool = False


@dataclass(slots=True)
class Worker:
    """Serves filters: restores, rotates and checkpoints each one when that is due.

    Attributes:
        redis: the server's address, as for ``UriFilter.open``.
        prefix: the first part of all keys, as for ``UriFilter.open``.
        archive: the archive's address, as for ``UriFilter.open``; None: there is no archive.
        backend: the backend of this archive, or None. With all filters, those that only the archive has are restored.
        every: seconds between two checkpoints of a filter.
        names: the names of the filters; empty: all filters.
        check: a function that is called between two steps. An error of it ends the work without loss.
        token: the name of this worker in its leases.
        timeouts: how long to wait for the server; None: the defaults.

    Example:
        >>> backend = open_backend("file:///srv/uris")
        >>> worker = Worker("redis://localhost:6379/0", "urifilter", "file:///srv/uris", backend, every=300.0)
        >>> [(done.filter, done.error) for done in worker.once()]
        [('images', None), ('news', None)]

    Raises:
        ValueError: one of ``names`` cannot be the name of a filter.
    """

    redis: str | None
    prefix: str
    archive: str | None
    backend: Backend | None
    every: float
    names: tuple[str, ...] = ()
    check: Callable[[], object] = lambda: None
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    timeouts: Timeouts | None = None
    _told: set[str] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        for name in self.names:
            check_name(name)

    def run(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Serve the filters, round after round, until ``check`` or ``sleep`` raises an error.

        Args:
            sleep: a function that waits for some seconds between two rounds.
        """
        while True:
            self.once()
            sleep(min(self.every, LONGEST_SLEEP))

    def once(self, *, force: bool = False) -> list[Served]:
        """Serve each filter once. Errors are logged and returned, so that the other filters are served, too.

        Args:
            force: write a checkpoint of each filter, whether it is due or not.
        """
        try:
            wanted = self.names or self._all()
        except UriFilterError as error:
            log.error("%s", error)  # noqa: TRY400 - a message, no traceback
            return [Served("", error=str(error))]
        return [self._serve(name, force=force) for name in wanted]

    def _all(self) -> tuple[str, ...]:
        found = set(list_filters(redis=self.redis, prefix=self.prefix, timeouts=self.timeouts))
        if self.backend is not None:
            found |= set(drive(registered_names(self.backend)))
        return tuple(sorted(found))

    def not_kept(self, name: str) -> dict[str, Any]:
        """Return the fields of ``Served`` for a filter without an archive; it is an error if the worker has one."""
        if self.backend is None:
            return {}
        text = not_kept(name)
        if name not in self._told:
            self._told.add(name)
            log.error("%s", text)
        return {"error": text}

    def _serve(self, name: str, *, force: bool) -> Served:
        try:
            options = ClientOptions(name, self.archive or "", self.redis, self.prefix, self.timeouts, rotate="never")
            connector, session = connect(options)
            session.check = self.check
            session.insists = False  # filters without an archive are opened, too
            with UriFilter(options, connector, session) as opened:
                drive(open_(session), connector, self.check)
                return _LeasedWork(self, opened, session, connector).run(force=force)
        except UriFilterError as error:
            log.error("%s", error)  # noqa: TRY400 - likewise
            return Served(name, error=str(error))


class _LeasedWork:
    """The work for one filter, under the worker's lease."""

    def __init__(self, worker: Worker, opened: UriFilter, session: Session, connector: Connector) -> None:
        self._worker, self._opened = worker, opened
        self._session, self._connector = session, connector
        self._leased = 0.0

    def run(self, *, force: bool) -> Served:
        name, restored = self._opened.name, self._opened.restored
        found: dict[str, Any] = {}
        if restored:
            shards = "1 shard" if restored.shards == 1 else f"{restored.shards} shards"
            log.info("%s: restored %s to checkpoint %d", name, shards, restored.checkpoint)
            found = {"restored": restored.shards, "problems": restored.problems}
        if not self._lease("take"):
            return Served(name, busy=True, **found)
        self._session.check = self._step
        try:
            found |= self._rotate()
            found |= self._checkpoint(force=force or found.get("epoch") is not None)
        finally:
            self._session.check = self._worker.check
            self._lease("release")
        return Served(name, **found)

    def _rotate(self) -> dict[str, Any]:
        done = self._opened.rotate_due() if self._opened.config.retention in TIMED else None
        if done is None:
            return {}
        log.info("%s: rotated to epoch %d", self._opened.name, done.epoch)
        return {"epoch": done.epoch, "problems": done.problems}

    def _checkpoint(self, *, force: bool) -> dict[str, Any]:
        """Write a checkpoint if one is due; a rotation makes it due, so that a restore has the new slices."""
        opened = self._opened
        if not opened.config.has_backend:
            return self._worker.not_kept(opened.name)
        if not force and opened.checkpoint_age() < self._worker.every:
            return {}
        done = opened.checkpoint()
        text = "%s: checkpoint %d, %d of %d shards, %d bytes"
        log.info(text, opened.name, done.number, done.shards, opened.config.shards, done.size)
        return {"checkpoint": done.number, "shards": done.shards, "size": done.size}

    def _step(self) -> None:
        self._worker.check()
        if time.monotonic() - self._leased > calls.lease_of(self._session.config) / 3 and not self._lease("take"):
            raise UriFilterError(f"{self._opened.name}: another worker has taken over")

    def _lease(self, step: str) -> bool:
        self._leased = time.monotonic()
        return drive(lease(self._session, step, self._worker.token), self._connector)
