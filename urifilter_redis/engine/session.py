"""The session: the knowledge that one client has of one filter and its server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from urifilter_redis.bloom.digest import make_digester
from urifilter_redis.bloom.retention import TIMED, seconds_of
from urifilter_redis.engine.backend import Backend
from urifilter_redis.engine.near_cache import NearCache, NearCacheSettings, near_cache_of
from urifilter_redis.engine.pending import Pending
from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.engine.steps import TOTAL, TOTAL_OF_SEVERAL, Timeouts
from urifilter_redis.engine.topology import GIVEN, Routes
from urifilter_redis.errors import FilterNotFound
from urifilter_redis.protocol.call_ids import CallIds, ServerClock
from urifilter_redis.protocol.calls import Arguments, CallBuilder
from urifilter_redis.protocol.config import Config, Sorting
from urifilter_redis.protocol.keys import FilterKeys
from urifilter_redis.protocol.meta import View, opened_by


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore.

    Attributes:
        shards: the number of restored shards.
        checkpoint: the highest number of their checkpoints; 0 if the archive had none.
        begun: the time at which the oldest of these checkpoints began, seconds since 1970; None if the archive had
            none. Items that were inserted after it, and that Redis does not have, count as new once more.
        problems: the damaged parts of the archive, for which the restore used older ones.

    Example:
        >>> news.restored is None
        True
    """

    shards: int
    checkpoint: int
    begun: float | None
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class Session:
    """The state that flows share. Each value is replaced as a whole, so threads need no lock.

    Attributes:
        keys: the filter's keys; until the filter is opened or made, those of shard 0 only.
        server: the server's address without its password.
        patience: the ``total`` of timeouts that leave it open, where another server may take over, seconds.
        wait_replicas: the replicas that must have an answer before it counts.
        confirms: whether an answer counts only if the server has saved it: that is asked after each exchange.
        backend: the backend of the archive that was named; None: none was.
        insists: whether the caller named the archive, and not the environment.
        where: the beginning of error messages: it names the filter and the server, or the server alone.
        discreet: whether errors leave out the archive's address, as their readers need not know it.
        check: called before each step of the blocking client, but for those within ``unchecked``; an exception from
            it ends the flow. None: nothing is called.
        report: called with (done, total) during long work.
        forbidden: the commands that the scripts call and that this user may not run.
        restored: the result of the restore when the filter was opened; None: nothing was restored.
        by_hand: whether somebody asks for a restore, and so knows of what is lost.
        near_cache: the caller's wish for a near cache.
        near: the near cache, made once the filter's configuration is known; None: there is none.
        uid: the filter's uid; empty before the filter is opened or made.
        config: the filter's configuration; like the next two it is there once the filter is opened or made.
        digester: makes the digests of items.
        sorting: see ``Config``.
        turned_by_inserts: see ``Config``; False before the filter is opened or made.
        freed_at: the time by ``monotonic`` at which the server has freed what the last turn let go.
    """

    keys: FilterKeys
    server: str
    timeouts: Timeouts = field(default_factory=Timeouts)
    backend: Backend | None = None
    insists: bool = False
    ids: CallIds = field(default_factory=CallIds)
    where: str = ""
    discreet: bool = False
    check: Callable[[], object] | None = None
    report: Callable[[int, int], object] = lambda *_: None
    forbidden: tuple[str, ...] = ()
    restored: Restored | None = None
    by_hand: bool = False
    pending: Pending[Any] = field(default_factory=Pending)
    rotation_timer: RotationTimer = field(default_factory=RotationTimer)
    near_cache: NearCacheSettings = field(default_factory=NearCacheSettings)
    routes: Routes = field(default_factory=lambda: Routes(alone=True))
    wait_replicas: int = 0
    confirms: bool = False
    patience: float = TOTAL_OF_SEVERAL
    near: NearCache | None = None
    uid: str = ""
    config: Config = field(init=False)
    digester: Callable[[Sequence[object]], list[bytes]] = field(init=False)
    sorting: Sorting | None = field(init=False)
    turned_by_inserts: bool = False
    freed_at: float = 0.0
    _unchecked: bool = False
    _first_view: View = field(default_factory=lambda: View(()))
    _views: dict[int, View] = field(default_factory=dict)
    _builders: dict[tuple[str, int], CallBuilder] = field(default_factory=dict)
    _turns: dict[int, tuple[str | None, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.where = self.where or f"filter {self.keys.name!r} on {self.server}"

    @property
    def total(self) -> float:
        """Seconds after which nothing is sent again."""
        given = self.timeouts.total
        return given if given is not None else self.patience if self.routes.follows else TOTAL

    def check_step(self) -> None:
        """Call ``check``, if there is one, but not within ``unchecked``."""
        if self.check is not None and not self._unchecked:
            self.check()

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        """Leave out ``check`` between steps that belong together, and that are few and short."""
        self._unchecked = True
        try:
            yield
        finally:
            self._unchecked = False

    def not_found(self, text: str) -> FilterNotFound:
        """Return the error for a filter that is gone; its message names the archive that may have it."""
        self.clear_near()
        if self.uid and self.config.has_backend:
            named = "an archive" if self.discreet else f"the archive {self.config.archive}"
            text += f"; it had {named}: unless it was dropped, open it with that (archive=, --archive) to restore it"
        return FilterNotFound(f"{self.where}: {text}")

    def learn(self, meta: dict[str, str]) -> Config:
        """Note the configuration and live slices of shard 0's ``meta``; return the configuration."""
        config = Config.from_meta(meta, self.where)
        self.assume(config, View.from_meta(meta, self.where))
        self._learn_time(meta, 0)
        return config

    def assume(self, config: Config, view: View) -> None:
        """Note a configuration and live slices that were read before."""
        self.keys = self.keys.of(config.shards)
        if config.uid != self.uid:
            self.near = near_cache_of(self.near_cache, config)
        self.uid, self.config, self._first_view, self._builders = config.uid, config, view, {}
        self.turned_by_inserts, self.sorting = config.turned_by_inserts, config.sorting
        self.digester = make_digester(config.normalize, config.hash, config.seed, config.rules)

    def view(self, shard: int) -> View:
        """Return the shard's live slices as they were last read; shard 0's if none were read of this shard."""
        return self._views.get(shard, self._first_view)

    def call_builder(self, command: str, shard: int) -> CallBuilder:
        """Return the builder of a command's calls to a shard, for the live slices as they were last read."""
        builders, view = self._builders, self._views.get(shard, self._first_view)
        made = builders.get((command, shard))
        if made is None or made.view is not view:
            made = builders[command, shard] = CallBuilder(command, self.config, self.keys.shard(shard), view)
        return made

    def learn_view(self, shard: int, meta: dict[str, str]) -> None:
        """Note the live slices of a shard's ``meta``, if it is this filter's."""
        if meta.get("uid") == self.config.uid:
            self.learn_turn(shard, meta)

    def learn_turn(self, shard: int, fields: dict[str, str]) -> None:
        """Note the live slices of a shard of this filter; ``fields`` are some of its ``meta``, or all."""
        self._views[shard] = View.from_meta(fields, self.where)
        if self.near is not None and self.config.retention in TIMED:
            turn = fields.get("epoch"), fields["slices"]
            if self._turns.get(shard) != turn:  # some items have expired
                self.near.clear()
            self._turns[shard] = turn
        if shard == 0:
            self._learn_time(fields, self.rotation_timer.lease)

    def clear_near(self) -> None:
        """Clear the near cache, because the filter, or some of its items, are gone."""
        if self.near is not None:
            self.near.clear()

    def _learn_time(self, fields: dict[str, str], seconds: float) -> None:
        """Let the rotation timer know when shard 0 has turned, from some fields of its ``meta``.

        If the turn is unfinished, this client checks after ``seconds`` whether another process goes on with it;
        likewise if the clocks disagree.
        """
        now, opened = self.clock_of(0).now(), fields.get("opened", "")
        if self.turned_by_inserts and opened.isdecimal():
            before = (int(each) for each in fields.get("ahead", "").split() if each.isdecimal())
            self.rotation_timer.learn(self.config, max(int(opened), opened_by(now, int(opened), *before)), now)
            wrong = abs(now / 1000 - time.time()) > seconds_of(self.config.period or "") / 2  # which is to be noted
            if wrong or (self.config.retention == "rolling" and "history_1:" in fields["slices"]):
                self.rotation_timer.check_in(seconds)

    def node_of(self, shard: int) -> str:
        """Return the name of the node that has a shard; while its slot has no master, ``GIVEN``."""
        return self.routes.node_of(self.read_meta(shard)) or GIVEN

    def clock_of(self, shard: int) -> ServerClock:
        """Return the clock of the server that has a shard."""
        return self.ids.clock_of(self.node_of(shard))

    def read_meta(self, shard: int) -> Arguments:
        """Return the command that reads a shard's ``meta``."""
        return self.keys.shard(shard).read_meta
