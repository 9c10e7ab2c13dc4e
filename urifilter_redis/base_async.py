"""The part of the asyncio client that has no blocking twin: event loops, coalescing, opening and closing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, NoReturn, Self, TypeVar

from urifilter_redis.base_client import BaseClient, ClientOptions, PackedFilter
from urifilter_redis.coalescer import Coalescer
from urifilter_redis.engine.batch import Key, Method, opened_up
from urifilter_redis.engine.combined_call import CombinedCall
from urifilter_redis.engine.driver import drive_async
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows import items
from urifilter_redis.flows.auto_rotate import leave
from urifilter_redis.storage.backends import named_backend
from urifilter_redis.transport.connections import AsyncConnector
from urifilter_redis.transport.loops import PerLoop, running_loop
from urifilter_redis.transport.url import Address

T = TypeVar("T")


class Opening(Coroutine[Any, Any, T]):
    """The coroutine that opens an asyncio client, which ``async with`` takes without ``await``, too."""

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening

    def __getattr__(self, name: str) -> NoReturn:
        text = f"the filter is not open yet, so it has no {name!r}: await it first"
        raise AttributeError(f"{text} (news = await AsyncUriFilter.open(…)), or take it by async with")

    def __await__(self) -> Generator[Any, Any, T]:
        return self._opening.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        await self._opened.close()  # type: ignore[attr-defined]

    def send(self, value: Any) -> Any:
        """Go on, as a coroutine."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._opening.close()


class AsyncBaseClient(BaseClient):
    """Drives flows with awaited I/O; each event loop has connections and a coalescer of its own."""

    _asynchronous = True
    _kind = AsyncConnector
    _connector: AsyncConnector

    def __init__(
        self, options: ClientOptions, connector: Any, session: Session, unopened: PackedFilter | None = None
    ) -> None:
        super().__init__(options, connector, session, unopened)
        self._coalescers = PerLoop(self._coalescer, Coalescer.close)

    @classmethod
    def _begin(cls, flow: Callable[[Session], Flow[object]], options: ClientOptions) -> Opening[Self]:
        return Opening(cls._connected(flow, options))

    @classmethod
    async def _connected(cls, flow: Callable[[Session], Flow[object]], options: ClientOptions) -> Self:
        running_loop()  # the first step would find that there is none, with an error of asyncio's
        backend, redis = named_backend(options.archive, asynchronous=True), options.redis
        # in a thread, because starting the embedded server takes a while
        given = await asyncio.to_thread(Address, redis) if redis is None or isinstance(redis, str) else redis
        connector = options.connector(AsyncConnector, given)
        session = options.session(connector.shown, backend)
        connector.equip(session)
        opened = cls(options, connector, session)
        try:
            await opened._run(flow(session))
        except BaseException:
            await opened._end()
            raise
        return opened

    async def _run(self, flow: Flow[T]) -> T:
        self._check_open()
        return await self._drive(flow)

    _beat = _run

    async def _drive(self, flow: Flow[T]) -> T:
        if self._unopened is not None:
            await self._connector.find()
            flow = self._opened_first(flow)
        self._connector.check_loop()
        return await drive_async(flow, self._connector)

    async def _finish(self, made: Callable[[], Flow[object]]) -> None:
        """Drive a flow to its end, also if its task is cancelled once: what it does is to be done all the same.

        The event loop closes a generator that a loop has left in a task of its own, and cancels that at its end. If the
        task has not begun then, it is GeneratorExit that arrives here.
        """
        try:
            await self._drive(made())
        except (asyncio.CancelledError, GeneratorExit):
            with contextlib.suppress(UriFilterError):
                await self._drive(made())
            raise

    async def _ask(  # noqa: PLR0913, PLR0917 - what a caller may say
        self,
        method: Method[T],
        objects: Sequence[object],
        max_age: int | None = None,
        retry: UriFilterError | None = None,
        key: Key = None,
        call_key: str | None = None,
    ) -> T:
        """Ask about items; return the method's result once all answers are there."""
        self._check_open()
        if self._unopened is None:
            self._connector.check_loop()
        batch = items.question(self._session, method, objects, max_age, retry, key, call_key)
        pending = self._session.pending
        pending.begin(batch)
        try:
            if isinstance(batch.combined, CombinedCall):
                await self._coalescers.get().again(batch, batch.combined)
            await self._drive(items.resolve(self._session, batch))
            return pending.answered(batch, method.result(batch))
        except BaseException as error:
            pending.failed(batch, error)
            raise

    async def _ask_singly(
        self, method: Method[T], uri: object, max_age: int | None = None, retry: UriFilterError | None = None
    ) -> T:
        """Ask about one item; the calls of many tasks are sent together."""
        if retry is not None or not self._options.coalesce:
            return await self._ask(method, [uri], max_age, retry)
        self._check_open()
        coalescer = self._coalescers.get()
        batch = items.question(self._session, method, [uri], max_age)
        if not batch.open:  # the near cache knows it
            return method.result(batch)
        return await coalescer.ask(method, batch)

    def _coalescer(self) -> Coalescer:
        """Make the coalescer of an event loop in which there can be connections."""
        if self._unopened is None:
            self._connector.check_loop()
        return Coalescer(self._session, self._drive)

    async def _end(self) -> None:
        """Take no more calls; leave the filter, and close the connections."""
        self._closed = True
        try:
            for each in list(self._claimed):
                await each._end_beating()  # noqa: SLF001 - parts of one client
            await self._coalescers.close()
            with contextlib.suppress(UriFilterError):  # nothing can be sent from another loop than the connections'
                await drive_async(leave(self._session), self._connector)
            if self._session.backend is not None:
                await self._drive(self._session.backend.close())
        finally:
            await self._connector.close()


async def windows(uris: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[list[T]]:
    """Cut a stream into lists of ``items.WINDOW`` items."""
    if not isinstance(uris, AsyncIterable):
        stream = iter(opened_up(uris))
        while window := list(itertools.islice(stream, items.WINDOW)):
            yield window
        return
    window = []
    async for item in uris:
        window.append(item)
        if len(window) == items.WINDOW:
            yield window
            window = []
    if window:
        yield window
