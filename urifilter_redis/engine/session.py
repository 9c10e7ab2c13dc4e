"""What one client knows of one filter and its server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from urifilter_redis.bloom.digest import hasher
from urifilter_redis.engine.batch import Digester
from urifilter_redis.engine.pending import Pending
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.errors import FilterNotFound
from urifilter_redis.protocol.call_ids import CallIds
from urifilter_redis.protocol.config import Config
from urifilter_redis.protocol.meta import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from urifilter_redis.engine.home import Home
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.protocol.keys import FilterKeys

__all__ = ["Restored", "Session"]


@dataclass(frozen=True, slots=True)
class Restored:
    """What was brought back.

    Attributes:
        shards: how many were restored.
        checkpoint: the highest number of their checkpoints; 0 if the archive had none.
        begun: when the oldest of these began, seconds since 1970; what was inserted later and is not in Redis is
            offered once more. None if the archive had none.
        problems: what in the archive was damaged, so that something older was used.
    """

    shards: int
    checkpoint: int
    begun: float | None
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class Session:
    """The state that flows share; what is replaced is replaced whole, so threads need no lock.

    Attributes:
        keys: of the filter.
        server: the server's address without its password.
        home: of the archive that the caller named, if any.
        insists: it was named in the call, and not by the environment.
        where: what errors name: the filter and server, or the server alone.
        discreet: errors do not name the archive, either: whoever reads them need not know where it is.
        timeouts: how long to wait.
        ids: the call ids of this client.
        check: called before each step of the blocking client; what it raises ends what is being done.
        report: called with (done, total) as long work goes on.
        forbidden: commands that the scripts call and this user may not run.
        restored: what opening the filter brought back from the archive, if anything.
        pending: batches whose answers are not with their caller yet.
    """

    keys: FilterKeys
    server: str
    timeouts: Timeouts = field(default_factory=Timeouts)
    home: Home | None = None
    insists: bool = False
    ids: CallIds = field(default_factory=CallIds)
    where: str = ""
    discreet: bool = False
    check: Callable[[], object] = lambda: None
    report: Callable[[int, int], object] = lambda *_: None
    forbidden: tuple[str, ...] = ()
    restored: Restored | None = None
    pending: Pending[Any] = field(default_factory=Pending)
    _config: Config | None = None
    _digester: Digester | None = None
    _first_view: View = field(default_factory=lambda: View(()))
    _views: dict[int, View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.where = self.where or f"filter {self.keys.name!r} on {self.server}"

    @property
    def config(self) -> Config:
        """The filter's configuration, once ``learn`` was called."""
        assert self._config is not None  # noqa: S101 - clients open before anything else
        return self._config

    @property
    def uid(self) -> str:
        """The uid of the filter that was opened or made; empty before that."""
        return "" if self._config is None else self._config.uid

    @property
    def digester(self) -> Digester:
        """What makes the filter's digests, once ``learn`` was called."""
        assert self._digester is not None  # noqa: S101 - likewise
        return self._digester

    def not_found(self, text: str) -> FilterNotFound:
        """Return the error to raise when the filter is not there any more; it names the archive that may have it."""
        archive = self._config.archive if self._config else None
        if archive not in {None, "redis"}:
            named = "an archive" if self.discreet else f"the archive {archive}"
            text += f"; it had {named}: unless it was dropped, open it with that (archive=, --archive) to restore it"
        return FilterNotFound(f"{self.where}: {text}")

    def learn(self, meta: dict[str, str]) -> Config:
        """Take over the configuration and live slices that shard 0's ``meta`` has."""
        config = Config.from_meta(meta, self.where)
        self.assume(config, View.from_meta(meta, self.where))
        return config

    def assume(self, config: Config, view: View) -> None:
        """Take over a configuration and live slices."""
        self._config, self._first_view = config, view
        self._digester = Digester(config.normalize, hasher(config.hash, config.seed))

    def view(self, shard: int) -> View:
        """Return the shard's live slices; until it says otherwise they are shard 0's."""
        return self._views.get(shard, self._first_view)

    def learn_view(self, shard: int, meta: dict[str, str]) -> None:
        """Take over the live slices that a shard's ``meta`` has."""
        if meta.get("uid") == self.config.uid:
            self._views[shard] = View.from_meta(meta, self.where)

    def read_meta(self, shard: int) -> Arguments:
        """Return the command that reads a shard's ``meta``."""
        return ("HGETALL", self.keys.shard(shard).meta)
