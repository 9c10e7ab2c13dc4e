"""The blocking client."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis import dropping, flows, lifecycle, rotation
from urifilter_redis.archive.home import named_home
from urifilter_redis.checkpoint import checkpoint, checkpoint_age
from urifilter_redis.config import Config, Settings
from urifilter_redis.connection import Address, Connector
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.exchange import Timeouts
from urifilter_redis.info import FilterInfo, info, inserted
from urifilter_redis.keys import DEFAULT_PREFIX, FilterKeys
from urifilter_redis.session import Session
from urifilter_redis.steps import Flow, Send, Sender, Step, Work
from urifilter_redis.union import union

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import redis as redis_py

    from urifilter_redis.batch import Batch
    from urifilter_redis.checkpoint import Written
    from urifilter_redis.restore import Restored
    from urifilter_redis.rotation import Rotation
    from urifilter_redis.state import View

__all__ = ["UriFilter", "drop_filter", "list_filters"]

T = TypeVar("T")


def drive(flow: Flow[T], connector: Sender | None = None, check: Callable[[], object] = lambda: None) -> T:
    """Run a flow with blocking I/O; return what it returns, raise what it raises.

    Args:
        flow: what to run.
        connector: to the server; None for a flow that asks none.
        check: called before each step; what it raises ends the flow there.
    """
    outcome: Any = None
    try:
        step = next(flow)
        while True:
            try:
                check()
                outcome = _perform(step, connector)
            except BaseException as error:  # noqa: BLE001 - the flow must hear of Ctrl-C too
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _perform(step: Step, connector: Sender | None) -> Any:
    if isinstance(step, Send):
        assert connector is not None  # noqa: S101 - see drive
        return connector.send(step.commands)
    return step.do() if isinstance(step, Work) else time.sleep(step.seconds)


def connect(
    name: str | None,
    redis: str | redis_py.Redis | None,
    prefix: str,
    timeouts: Timeouts | None,
    archive: str | None = None,
) -> tuple[Connector, Session]:
    """Return a connector, and a session of a filter that is not opened yet (None: of the server alone)."""
    keys, timeouts = FilterKeys(prefix, "any" if name is None else name), timeouts or Timeouts()
    home = named_home(archive)
    given = Address(redis) if redis is None or isinstance(redis, str) else redis
    connector = Connector(given, timeouts)
    where = connector.shown if name is None else ""
    return connector, Session(keys, connector.shown, timeouts, home, insists=archive is not None, where=where)


def _close(session: Session, connector: Connector) -> None:
    if session.home is not None:
        drive(session.home.close(), connector)
    connector.close()


class UriFilter:
    """A shared set of seen items, inside a Redis or Valkey server.

    Make one with ``create`` or ``open``; it may be shared by threads and used after a fork. As a context manager
    it closes itself.
    """

    def __init__(self, connector: Connector, session: Session) -> None:
        self._connector = connector
        self._session = session

    @classmethod
    def create(  # noqa: PLR0913 - the settings of a filter
        cls,
        name: str,
        *,
        capacity: int,
        error_rate: float = 1e-4,
        layout: str = "blocked",
        retention: str = "forever",
        slices: int | None = None,
        period: str | int | None = None,
        write: str | None = None,
        expire_after: str | None = None,
        period_capacity: int | None = None,
        shards: int | None = None,
        normalize: str = "none",
        hash: str = "mmh3",  # noqa: A002 - the setting's name
        seed: int | str | None = None,
        large: bool = False,
        archive: str | None = None,
        redis: str | redis_py.Redis | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """Make a filter, or open it if it is there with the same settings.

        Args:
            name: 1 to 64 of ``A-Z a-z 0-9 . _ -``.
            capacity: items of the whole window (growing: of the first slice).
            error_rate: the probability, at capacity, that an item not seen is taken for seen, over all slices.
            layout: ``blocked`` (fast), ``classic`` (smallest) or ``counting`` (items can be removed; forever only).
            retention: ``forever``, ``growing``, ``ring`` or ``rolling``.
            slices: ring and rolling: the window in periods; what was seen expires that many rotations later.
            period: ring and rolling: time between rotations: ``45s``, ``10m``, ``6h``, ``1d``, ``2w``, or seconds.
            write: ring: ``newest`` (None means that; the slices are written once, and all are looked at) or ``all``
                (all are written, and one is looked at).
            expire_after: ring and rolling: ``first-seen`` (None means that) or ``last-seen``.
            period_capacity: ring with write newest: items that one period may bring; None: 2 capacity / slices.
            shards: 1 to 4096, above 64 a power of two; None: the fewest that keep bitmaps under 16 MiB.
            normalize: ``none``, ``whatwg`` or ``sorted``.
            hash: ``mmh3``, ``md5`` or ``blake2b`` (keyed: for hostile input).
            seed: for mmh3 a 32-bit number, for blake2b 32 hex digits; None: random.
            large: make it even if it takes more than half of the memory that the server has free.
            archive: where checkpoints and closed slices go, and what is restored from: ``file:///…`` or
                ``mongodb://…/database``; None: ``URIFILTER_ARCHIVE``, else none (rolling: Redis, for closed slices).
            redis: a URL or a ``redis.Redis``; None: ``URIFILTER_REDIS_URL``, else the embedded server.
            prefix: what all keys begin with.
            timeouts: how long to wait for the server.

        Raises:
            ValueError: a setting is not possible.
            TooLarge: it takes more memory than the server has free, or more than half of that without ``large``.
            ConfigMismatch: the filter exists with other settings; each is named.
            SliceLost: parts of the filter are missing.
            Restoring: another process is bringing the filter back from its archive.
            ArchiveError: the archive is away, damaged, not named, or not the filter's.
            ServerUnavailable: the server is away, or refuses.
        """
        settings = Settings(
            capacity=capacity,
            error_rate=error_rate,
            layout=layout,
            retention=retention,
            slices=slices,
            period=period,
            write=write,
            expire_after=expire_after,
            period_capacity=period_capacity,
            shards=shards,
            normalize=normalize,
            hash=hash,
            seed=seed,
        )
        flow = functools.partial(lifecycle.create, settings=settings, large=large)
        return cls._begin(flow, name, redis, prefix, timeouts, archive)

    @classmethod
    def open(
        cls,
        name: str,
        *,
        archive: str | None = None,
        redis: str | redis_py.Redis | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """Open a filter that exists in Redis or its archive; the arguments are those of ``create``.

        With its archive it is restored if Redis came back empty, older than the archive, or without some slices.

        Raises:
            FilterNotFound: there is none of that name.
            ConfigMismatch: ``archive`` has another filter of this name than Redis, or was given for one without.
            SliceLost: parts of the filter are missing.
            Restoring: another process is bringing the filter back from its archive.
            ArchiveMissing: it is not there, and this user has seen it with an archive, which the message names.
            ArchiveError: the archive is away, damaged, or not the filter's.
            ServerUnavailable: the server is away, or refuses.
        """
        return cls._begin(lifecycle.open_, name, redis, prefix, timeouts, archive)

    @classmethod
    def _begin(cls, flow: Callable[[Session], Flow[object]], *where: Any) -> Self:
        connector, session = connect(*where)
        opened = cls(connector, session)
        try:
            opened._run(flow(session))
        except BaseException:
            opened.close()
            raise
        return opened

    def _run(self, flow: Flow[T]) -> T:
        return drive(flow, self._connector, self._session.check)

    @property
    def name(self) -> str:
        """The filter's name."""
        return self._session.keys.name

    @property
    def server(self) -> str:
        """The server's address, without its password."""
        return self._session.server

    @property
    def config(self) -> Config:
        """The settings and geometry that were fixed at creation."""
        return self._session.config

    @property
    def settings(self) -> dict[str, Any]:
        """What ``create`` takes to make another filter with the same geometry, hash and seed."""
        return self._session.config.settings

    def view(self, shard: int) -> View:
        """Return the live slices of a shard, as far as this client knows."""
        return self._session.view(shard)

    @property
    def forbidden(self) -> tuple[str, ...]:
        """The server's commands that this user may not run and some methods need, as opening the filter found them."""
        return self._session.forbidden

    @property
    def restored(self) -> Restored | None:
        """What opening the filter brought back from its archive; None if nothing."""
        return self._session.restored

    @property
    def on_progress(self) -> Callable[[int, int], object]:
        """Called with (done, total) as a rotation or union goes on; for a progress bar."""
        return self._session.report

    @on_progress.setter
    def on_progress(self, report: Callable[[int, int], object]) -> None:
        self._session.report = report

    @property
    def unresolved(self) -> list[AnswerLost]:
        """Calls that were interrupted before all answers were there; pass one as ``retry=`` to get them."""
        return flows.unresolved(self._session)

    def _ask(
        self,
        command: str,
        uris: Iterable[object],
        read: Callable[[Batch], T],
        max_age: int | None = None,
        retry: UriFilterError | None = None,
    ) -> T:
        """Ask about items; return what ``read`` makes of the batch once it has all answers."""
        batch = flows.batch_of(self._session, command, flows.listed(uris), retry, max_age)
        with self._session.pending.hold(batch):
            return read(self._run(flows.resolve(self._session, batch)))

    def insert(self, uri: object, *, max_age: int | None = None, retry: UriFilterError | None = None) -> bool:
        """Insert an item; True: it is new, and nobody else was or will be told so. Arguments as ``insert_many``.

        Raises:
            BadItem: it cannot be filtered.
            AnswerLost: ask again with ``retry=``.
            UriFilterError: any other of the tree in ``errors``.
        """
        return self._ask("insert", [uri], lambda batch: batch.answers[0] == 0, max_age, retry)

    def insert_many(
        self, uris: Iterable[object], *, max_age: int | None = None, retry: UriFilterError | None = None
    ) -> list[int]:
        """Insert items; return the age of each. An item given twice is new once.

        0 is new; n was seen, in the n-th newest slice (rolling: 1 in today, 2 before; ring with write all: 1).

        Args:
            uris: any number; all are checked before any is sent.
            max_age: ring: what was seen only in slices older than this counts as new; None: any age is seen.
            retry: what this method raised for the same items; only what has no answer yet is asked again.

        Raises:
            BadItem: with all bad indices; nothing was inserted.
            ValueError: ``max_age`` is not for this filter.
            FilterFull: growing: no further slice can be made.
            AnswerLost: retries ran out; ``answers`` has what did arrive, ``retry=`` asks for the rest.
            UriFilterError: likewise with ``answers``.
        """
        return self._ask("insert", uris, flows.ages, max_age, retry)

    def unique(
        self, uris: Iterable[object], *, max_age: int | None = None, retry: UriFilterError | None = None
    ) -> list[Any]:
        """Insert items; return those that are new, in their order. Arguments and errors as ``insert_many``."""
        return self._ask("insert", uris, flows.new_items, max_age, retry)

    def __call__(self, uris: Iterable[object], *, max_age: int | None = None) -> list[Any]:
        """Do as ``unique``."""
        return self.unique(uris, max_age=max_age)

    def iter_unique(self, uris: Iterable[T], *, max_age: int | None = None) -> Iterator[T]:
        """Yield those of a stream of any length that are new, in their order; memory is bounded.

        Items are inserted in windows of some thousand. When the loop over this ends early, what was inserted and
        not yielded is forgotten again. When an error ends a window, what is known to be new is yielded first; the
        error's ``items`` are the window's, for ``retry=``.
        """
        flows.check_many(uris)
        stream = iter(uris)
        while window := list(itertools.islice(stream, flows.WINDOW)):
            left: Iterator[Any] = iter(())
            failed: UriFilterError | None = None
            try:
                left, failed = self._insert_window(window, max_age)
                yield from left
            except BaseException:
                if failed is None:
                    self.forget(left)
                else:  # nobody hears of it otherwise
                    self._session.pending.keep(failed.batch)
                raise
            if failed is not None:
                raise failed

    def _insert_window(self, window: Sequence[T], max_age: int | None) -> tuple[Iterator[T], UriFilterError | None]:
        """Insert items; return those that are known to be new, and the error that left others without an answer."""
        batch = flows.batch_of(self._session, "insert", window, max_age=max_age)
        with self._session.pending.hold(batch):
            failed = None
            try:
                self._run(flows.resolve(self._session, batch))
            except UriFilterError as error:
                failed = error
            return iter(flows.new_items(batch)), failed

    def contains(self, uri: object, *, max_age: int | None = None) -> bool:
        """Whether an item was seen; arguments and errors as ``contains_many``."""
        return self.contains_many([uri], max_age=max_age)[0] > 0

    def contains_many(self, uris: Iterable[object], *, max_age: int | None = None) -> list[int]:
        """Return the age of each item without inserting: 0 for not seen, else as ``insert_many``.

        Args:
            uris: any number.
            max_age: ring: look only at so many of the newest slices; None: at all.

        Raises:
            BadItem: with all bad indices.
            ValueError: ``max_age`` is not for this filter.
            UriFilterError: any other of the tree in ``errors``.
        """
        return self._ask("contains", uris, flows.ages, max_age)

    def __contains__(self, uri: Hashable) -> bool:
        return self.contains(uri)

    def forget(self, uris: Iterable[object], *, retry: UriFilterError | None = None) -> list[bool]:
        """Make items new again; return whether each was there. Raises as ``insert_many``."""
        return self._ask("forget", uris, flows.truths, retry=retry)

    def remove(self, uris: Iterable[object], *, retry: UriFilterError | None = None) -> list[bool]:
        """Take items out again, layout counting only; return whether each was there. Raises as ``insert_many``.

        Remove only what you know was inserted. What was not is noticed but for the error rate; the rest hides other
        items. When you do not know, use ``forget``.

        Raises:
            ValueError: the layout is another.
        """
        return self._ask("remove", uris, flows.truths, retry=retry)

    def checkpoint_age(self) -> float:
        """Return the seconds since the last checkpoint of any shard began; infinity if that is not known."""
        return self._run(checkpoint_age(self._session))

    def rotate(self, expected_epoch: int | None = None, *, dry_run: bool = False) -> Rotation:
        """Rotate a ring or rolling filter once, and finish a rotation that somebody has left.

        Args:
            expected_epoch: rotate only if the filter is in this epoch, so that of many who do so one does;
                None: rotate in any case.
            dry_run: do nothing; return what would be reached.

        Raises:
            RotationConflict: it is not, or not any more, in ``expected_epoch``.
            UriFilterError: the retention does not rotate by time; any other of the tree in ``errors``.
        """
        return self._run(rotation.rotate(self._session, expected_epoch, dry_run=dry_run))

    def due(self) -> int | None:
        """Return the epoch that ``rotate_due`` would reach; None if nothing is due. Errors as ``rotate``."""
        return self._run(rotation.due(self._session))

    def epoch(self) -> int:
        """Return how often the filter was rotated."""
        return self._run(rotation.epoch(self._session))

    def next_rotation(self) -> float:
        """Return when a rotation is due, in seconds since 1970, server time. Errors as ``rotate``."""
        return self._run(rotation.next_rotation(self._session))

    def rotate_due(self) -> Rotation | None:
        """Rotate if a period is over or a rotation was left unfinished; None if not. Errors as ``rotate``."""
        return self._run(rotation.rotate_due(self._session))

    def checkpoint(self, *, full: bool = False) -> Written:
        """Write back to the archive what has changed since the last checkpoint; inserts go on meanwhile.

        Args:
            full: write everything, for an archive in which something was damaged.

        Raises:
            ArchiveMissing: the filter has no archive, or it was not named.
            ArchiveError: the archive failed; the last checkpoint is there still.
            UriFilterError: any other of the tree in ``errors``.
        """
        return self._run(checkpoint(self._session, full=full))

    def union(self, *sources: str) -> int:
        """Insert all that other filters on this server, of equal geometry, hash and seed, have seen.

        Args:
            sources: their names; ``create(name, **news.settings)`` makes such a filter.

        Returns:
            About how many items that were.

        Raises:
            FilterNotFound: there is no such filter.
            ConfigMismatch: one is of other geometry, hash or seed; each difference is named.
        """
        return self._run(union(self._session, sources))

    def info(self) -> FilterInfo:
        """Return configuration and state; counts all bits, so it costs the server some ms for every 16 MiB."""
        return self._run(info(self._session))

    def inserted(self) -> int:
        """Return how many items were answered "new" and have not expired; cheap, unlike ``info``."""
        return self._run(inserted(self._session))

    def drop(self, *, keep_archive: bool = False) -> None:
        """Remove the filter and all that it has seen, in its archive too unless ``keep_archive``.

        Raises:
            ConfigMismatch: it was dropped and created anew by somebody else.
            ArchiveMissing: it has an archive, which was not named.
        """
        self._run(dropping.drop(self._session, keep_archive=keep_archive))

    def close(self) -> None:
        """Close the connections; the filter stays on the server."""
        _close(self._session, self._connector)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def run(  # noqa: PLR0913 - where the filter is
    flow: Callable[[Session], Flow[T]],
    name: str | None = None,
    *,
    archive: str | None = None,
    redis: str | redis_py.Redis | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeouts: Timeouts | None = None,
) -> T:
    """Connect, run one flow, and close; for what needs no open filter."""
    connector, session = connect(name, redis, prefix, timeouts, archive)
    try:
        return drive(flow(session), connector)
    finally:
        _close(session, connector)


def list_filters(
    *, redis: str | redis_py.Redis | None = None, prefix: str = DEFAULT_PREFIX, timeouts: Timeouts | None = None
) -> list[str]:
    """Return the names of the filters on a server, sorted.

    Raises:
        ServerUnavailable: the server is away, or refuses.
    """
    return run(lifecycle.names, redis=redis, prefix=prefix, timeouts=timeouts)


def drop_filter(  # noqa: PLR0913 - likewise
    name: str,
    *,
    keep_archive: bool = False,
    archive: str | None = None,
    redis: str | redis_py.Redis | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeouts: Timeouts | None = None,
) -> bool:
    """Remove a filter, also one that cannot be opened because parts of it are lost; return whether it was there.

    Raises:
        ArchiveMissing: it has an archive, which was not named; ``keep_archive`` leaves that alone.
        ServerUnavailable: the server is away, or refuses.
    """
    flow = functools.partial(dropping.drop, keep_archive=keep_archive)
    return run(flow, name, archive=archive, redis=redis, prefix=prefix, timeouts=timeouts)
