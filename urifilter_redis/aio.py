"""The asyncio client: the methods of ``client.UriFilter``, awaited."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from urifilter_redis import flows, lifecycle
from urifilter_redis.config import Config, Settings
from urifilter_redis.connection import Address, AsyncConnector
from urifilter_redis.errors import AnswerLost, UriFilterError
from urifilter_redis.exchange import Timeouts
from urifilter_redis.info import FilterInfo, info, inserted
from urifilter_redis.keys import DEFAULT_PREFIX, FilterKeys
from urifilter_redis.session import Session
from urifilter_redis.steps import Flow, Pause

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import redis.asyncio as redis_asyncio

__all__ = ["AsyncUriFilter"]

T = TypeVar("T")


async def drive(flow: Flow[T], connector: AsyncConnector) -> T:
    """Run a flow with awaited I/O; return what it returns, raise what it raises."""
    outcome: Any = None
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    outcome = None
                else:
                    outcome = await connector.send(step.commands)
            except BaseException as error:  # noqa: BLE001 - the flow must hear of cancellation too
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


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
        shards: int | None = None,
        normalize: str = "none",
        hash: str = "mmh3",  # noqa: A002 - the setting's name
        seed: int | str | None = None,
        redis: str | redis_asyncio.Redis | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """Make a filter, or open it if it is there with the same settings; see ``UriFilter.create``."""
        settings = Settings(capacity, error_rate, layout, retention, shards, normalize, hash, seed)
        flow = functools.partial(lifecycle.create, settings=settings)
        return await cls._begin(name, redis, prefix, timeouts, flow)

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        redis: str | redis_asyncio.Redis | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """Open a filter that exists; see ``UriFilter.open``."""
        return await cls._begin(name, redis, prefix, timeouts, lifecycle.open_)

    @classmethod
    async def _begin(
        cls,
        name: str,
        redis: str | redis_asyncio.Redis | None,
        prefix: str,
        timeouts: Timeouts | None,
        flow: Callable[[Session], Flow[object]],
    ) -> Self:
        keys, timeouts = FilterKeys(prefix, name), timeouts or Timeouts()
        # in a thread, because starting the embedded server takes a while
        given = await asyncio.to_thread(Address, redis) if redis is None or isinstance(redis, str) else redis
        connector = AsyncConnector(given, timeouts)
        session = Session(keys, connector.shown, timeouts)
        try:
            await drive(flow(session), connector)
        except BaseException:
            await connector.close()
            raise
        return cls(connector, session)

    async def _run(self, flow: Flow[T]) -> T:
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
    def unresolved(self) -> list[AnswerLost]:
        """Calls that were cancelled before all answers were there; pass one as ``retry=`` to get them."""
        return flows.unresolved(self._session)

    async def insert(self, uri: object, *, retry: UriFilterError | None = None) -> bool:
        """Insert an item; see ``UriFilter.insert``."""
        return (await self.insert_many([uri], retry=retry))[0] == 0

    async def insert_many(self, uris: Iterable[object], *, retry: UriFilterError | None = None) -> list[int]:
        """Insert items; see ``UriFilter.insert_many``."""
        return await self._run(flows.answer(self._session, "insert", flows.listed(uris), retry))

    async def unique(self, uris: Iterable[object], *, retry: UriFilterError | None = None) -> list[Any]:
        """Insert items, return the new ones; see ``UriFilter.unique``."""
        items = flows.listed(uris)
        return flows.selected(items, await self.insert_many(items, retry=retry))

    async def __call__(self, uris: Iterable[object]) -> list[Any]:
        """Do as ``unique``."""
        return await self.unique(uris)

    async def iter_unique(self, uris: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
        """Yield the new items of a stream, which may be asynchronous; see ``UriFilter.iter_unique``."""
        async for window in _windows(uris):
            failed: UriFilterError | None = None
            try:
                new = await self.unique(window)
            except UriFilterError as error:
                failed, new = error, flows.selected(window, error.answers or [])
            left = iter(new)
            try:
                for item in left:
                    yield item
            except GeneratorExit:
                await self.forget(left)
                raise
            if failed is not None:
                raise failed

    async def contains(self, uri: object) -> bool:
        """Whether an item was seen; see ``UriFilter.contains``."""
        return (await self.contains_many([uri]))[0] > 0

    async def contains_many(self, uris: Iterable[object]) -> list[int]:
        """Return the age of each item; see ``UriFilter.contains_many``."""
        return await self._run(flows.answer(self._session, "contains", flows.listed(uris)))

    async def forget(self, uris: Iterable[object], *, retry: UriFilterError | None = None) -> list[bool]:
        """Make items new again; see ``UriFilter.forget``."""
        answers = await self._run(flows.answer(self._session, "forget", flows.listed(uris), retry))
        return [answer == 1 for answer in answers]

    async def info(self) -> FilterInfo:
        """Return configuration and state; see ``UriFilter.info``."""
        return await self._run(info(self._session))

    async def inserted(self) -> int:
        """Return how many items were answered "new" so far; see ``UriFilter.inserted``."""
        return await self._run(inserted(self._session))

    async def drop(self) -> None:
        """Remove the filter; see ``UriFilter.drop``."""
        await self._run(lifecycle.drop(self._session))

    async def close(self) -> None:
        """Close the connections; the filter stays on the server."""
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
