"""The asyncio client: the methods of ``client.UriFilter``, awaited."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis import dropping, flows, lifecycle, rotation
from urifilter_redis.archive.home import named_home
from urifilter_redis.checkpoint import checkpoint, checkpoint_age
from urifilter_redis.config import Config, Settings
from urifilter_redis.connection import Address, AsyncConnector
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.exchange import Timeouts
from urifilter_redis.info import FilterInfo, info, inserted
from urifilter_redis.keys import DEFAULT_PREFIX, FilterKeys
from urifilter_redis.session import Session
from urifilter_redis.steps import AsyncSender, Flow, Pause, Send, Step
from urifilter_redis.union import union

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import redis.asyncio as redis_asyncio

    from urifilter_redis.batch import Batch
    from urifilter_redis.checkpoint import Written
    from urifilter_redis.restore import Restored
    from urifilter_redis.rotation import Rotation

__all__ = ["AsyncUriFilter"]

T = TypeVar("T")


async def drive(flow: Flow[T], connector: AsyncSender) -> T:
    """Run a flow with awaited I/O; return what it returns, raise what it raises."""
    outcome: Any = None
    try:
        step = next(flow)
        while True:
            try:
                outcome = await _perform(step, connector)
            except BaseException as error:  # noqa: BLE001 - the flow must hear of cancellation too
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _perform(step: Step, connector: AsyncSender) -> Any:
    if isinstance(step, Send):
        return await connector.send(step.commands)
    if isinstance(step, Pause):
        return await asyncio.sleep(step.seconds)
    if not step.awaited:
        return await asyncio.to_thread(step.do)
    outcome = step.do()
    return await outcome if inspect.isawaitable(outcome) else outcome


class AsyncUriFilter:
    """A shared set of seen items, inside a Redis or Valkey server, for asyncio.

    The methods are those of ``UriFilter``, with its arguments, answers and errors. A call whose task is cancelled
    may have inserted: ``unresolved`` has it, and ``retry=`` gets its answers.
    """

    def __init__(self, connector: AsyncConnector, session: Session) -> None:
        self._connector = connector
        self._session = session

    @classmethod
    async def create(  # noqa: PLR0913 - the settings of a filter
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
        redis: str | redis_asyncio.Redis | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """Make a filter, or open it if it is there with the same settings; see ``UriFilter.create``."""
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
        return await cls._begin(flow, name, redis, prefix, timeouts, archive)

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        archive: str | None = None,
        redis: str | redis_asyncio.Redis | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """Open a filter that exists; see ``UriFilter.open``."""
        return await cls._begin(lifecycle.open_, name, redis, prefix, timeouts, archive)

    @classmethod
    async def _begin(  # noqa: PLR0913, PLR0917 - where the filter is
        cls,
        flow: Callable[[Session], Flow[object]],
        name: str,
        redis: str | redis_asyncio.Redis | None,
        prefix: str,
        timeouts: Timeouts | None,
        archive: str | None,
    ) -> Self:
        keys, timeouts = FilterKeys(prefix, name), timeouts or Timeouts()
        home = named_home(archive, asynchronous=True)
        # in a thread, because starting the embedded server takes a while
        given = await asyncio.to_thread(Address, redis) if redis is None or isinstance(redis, str) else redis
        connector = AsyncConnector(given, timeouts)
        opened = cls(connector, Session(keys, connector.shown, timeouts, home, insists=archive is not None))
        try:
            await opened._run(flow(opened._session))
        except BaseException:
            await opened.close()
            raise
        return opened

    async def _run(self, flow: Flow[T]) -> T:
        self._connector.check_loop()
        return await drive(flow, self._connector)

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

    @property
    def forbidden(self) -> tuple[str, ...]:
        """The server's commands that this user may not run and some methods need; see ``UriFilter.forbidden``."""
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
        """Calls that were cancelled before all answers were there; pass one as ``retry=`` to get them."""
        return flows.unresolved(self._session)

    async def _ask(
        self,
        command: str,
        uris: Iterable[object],
        read: Callable[[Batch], T],
        max_age: int | None = None,
        retry: UriFilterError | None = None,
    ) -> T:
        """Ask about items; return what ``read`` makes of the batch once it has all answers."""
        self._connector.check_loop()
        batch = flows.batch_of(self._session, command, flows.listed(uris), retry, max_age)
        with self._session.pending.hold(batch):
            return read(await self._run(flows.resolve(self._session, batch)))

    async def insert(self, uri: object, *, max_age: int | None = None, retry: UriFilterError | None = None) -> bool:
        """Insert an item; see ``UriFilter.insert``."""
        return await self._ask("insert", [uri], lambda batch: batch.answers[0] == 0, max_age, retry)

    async def insert_many(
        self, uris: Iterable[object], *, max_age: int | None = None, retry: UriFilterError | None = None
    ) -> list[int]:
        """Insert items; see ``UriFilter.insert_many``."""
        return await self._ask("insert", uris, flows.ages, max_age, retry)

    async def unique(
        self, uris: Iterable[object], *, max_age: int | None = None, retry: UriFilterError | None = None
    ) -> list[Any]:
        """Insert items, return the new ones; see ``UriFilter.unique``."""
        return await self._ask("insert", uris, flows.new_items, max_age, retry)

    async def __call__(self, uris: Iterable[object], *, max_age: int | None = None) -> list[Any]:
        """Do as ``unique``."""
        return await self.unique(uris, max_age=max_age)

    async def iter_unique(
        self, uris: Iterable[T] | AsyncIterable[T], *, max_age: int | None = None
    ) -> AsyncIterator[T]:
        """Yield the new items of a stream, which may be asynchronous; see ``UriFilter.iter_unique``."""
        async for window in _windows(uris):
            left: Iterator[Any] = iter(())
            failed: UriFilterError | None = None
            try:
                left, failed = await self._insert_window(window, max_age)
                for item in left:
                    yield item
            except BaseException:
                if failed is None:
                    await self.forget(left)
                else:  # nobody hears of it otherwise
                    self._session.pending.keep(failed.batch)
                raise
            if failed is not None:
                raise failed

    async def _insert_window(
        self, window: Sequence[T], max_age: int | None
    ) -> tuple[Iterator[T], UriFilterError | None]:
        """Insert items; return those that are known to be new, and the error that left others without an answer."""
        batch = flows.batch_of(self._session, "insert", window, max_age=max_age)
        with self._session.pending.hold(batch):
            failed = None
            try:
                await self._run(flows.resolve(self._session, batch))
            except UriFilterError as error:
                failed = error
            return iter(flows.new_items(batch)), failed

    async def contains(self, uri: object, *, max_age: int | None = None) -> bool:
        """Whether an item was seen; see ``UriFilter.contains``."""
        return (await self.contains_many([uri], max_age=max_age))[0] > 0

    async def contains_many(self, uris: Iterable[object], *, max_age: int | None = None) -> list[int]:
        """Return the age of each item; see ``UriFilter.contains_many``."""
        return await self._ask("contains", uris, flows.ages, max_age)

    async def forget(self, uris: Iterable[object], *, retry: UriFilterError | None = None) -> list[bool]:
        """Make items new again; see ``UriFilter.forget``."""
        return await self._ask("forget", uris, flows.truths, retry=retry)

    async def remove(self, uris: Iterable[object], *, retry: UriFilterError | None = None) -> list[bool]:
        """Take items out again, layout counting only; see ``UriFilter.remove``."""
        return await self._ask("remove", uris, flows.truths, retry=retry)

    async def checkpoint_age(self) -> float:
        """Return the seconds since the last checkpoint of any shard began; see ``UriFilter.checkpoint_age``."""
        return await self._run(checkpoint_age(self._session))

    async def rotate(self, expected_epoch: int | None = None, *, dry_run: bool = False) -> Rotation:
        """Rotate a ring or rolling filter once; see ``UriFilter.rotate``."""
        return await self._run(rotation.rotate(self._session, expected_epoch, dry_run=dry_run))

    async def due(self) -> int | None:
        """Return the epoch that ``rotate_due`` would reach; see ``UriFilter.due``."""
        return await self._run(rotation.due(self._session))

    async def epoch(self) -> int:
        """Return how often the filter was rotated."""
        return await self._run(rotation.epoch(self._session))

    async def next_rotation(self) -> float:
        """Return when a rotation is due; see ``UriFilter.next_rotation``."""
        return await self._run(rotation.next_rotation(self._session))

    async def rotate_due(self) -> Rotation | None:
        """Rotate if it is due; see ``UriFilter.rotate_due``."""
        return await self._run(rotation.rotate_due(self._session))

    async def checkpoint(self, *, full: bool = False) -> Written:
        """Write back to the archive what has changed; see ``UriFilter.checkpoint``."""
        return await self._run(checkpoint(self._session, full=full))

    async def union(self, *sources: str) -> int:
        """Insert all that other filters have seen; see ``UriFilter.union``."""
        return await self._run(union(self._session, sources))

    async def info(self) -> FilterInfo:
        """Return configuration and state; see ``UriFilter.info``."""
        return await self._run(info(self._session))

    async def inserted(self) -> int:
        """Return how many items were answered "new" and have not expired; see ``UriFilter.inserted``."""
        return await self._run(inserted(self._session))

    async def drop(self, *, keep_archive: bool = False) -> None:
        """Remove the filter; see ``UriFilter.drop``."""
        await self._run(dropping.drop(self._session, keep_archive=keep_archive))

    async def close(self) -> None:
        """Close the connections; the filter stays on the server."""
        if self._session.home is not None:
            await self._run(self._session.home.close())
        await self._connector.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _windows(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[list[T]]:
    """Cut a stream into lists of ``flows.WINDOW`` items."""
    if not isinstance(items, AsyncIterable):
        flows.check_many(items)
        stream = iter(items)
        while window := list(itertools.islice(stream, flows.WINDOW)):
            yield window
        return
    window = []
    async for item in items:
        window.append(item)
        if len(window) == flows.WINDOW:
            yield window
            window = []
    if window:
        yield window
