"""The asyncio client of the service: the methods of ``sdk.client.FilterAPIClient``, awaited."""

from __future__ import annotations

import asyncio
import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from urifilter_redis.engine.async_driver import drive
from urifilter_redis.errors import UriFilterError
from urifilter_redis.http_api import DEFAULT_PATH, FILTERS_PATH
from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.sdk.api import API, TIMEOUTS, Client
from urifilter_redis.sdk.responses import failed, judged, told
from urifilter_redis.transport.loops import PerLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from urifilter_redis.engine.steps import Flow, Timeouts
    from urifilter_redis.errors import FilterAPIError
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.sdk.asked import Asked

__all__ = ["AsyncFilterAPIClient"]

T = TypeVar("T")


class _AsyncConnector:
    """Sends requests, awaited; each event loop and process has connections of its own."""

    def __init__(self, api: API) -> None:
        self._api = api
        self._clients = PerLoop(lambda: httpx.AsyncClient(**api.options), lambda client: client.aclose())

    def check_loop(self) -> None:
        """Raise FilterAPIError in a forked child that is in its parent's loop, before anything is sent."""
        try:
            self._clients.get()
        except UriFilterError as error:
            raise told(error) from None

    async def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send requests once; return an outcome for each (see ``steps.Send``)."""
        return list(await asyncio.gather(*map(self._send, commands)))

    async def _send(self, command: Arguments) -> Any:
        attempt = secrets.token_hex(8)
        try:
            response = await (await self._clients.kept()).request(**self._api.request(command, attempt))
        except httpx.HTTPError as error:
            return failed(error)
        outcome = judged(self._api.session, attempt, response)
        if isinstance(outcome, Unanswered):
            await response.extensions["network_stream"].aclose()
        return outcome

    async def close(self) -> None:
        """Close the connections of this loop."""
        await self._clients.close()


class AsyncFilterAPIClient(Client):
    """Asks the service, awaited: the methods of ``FilterAPIClient``, with its arguments, answers and errors."""

    def __init__(
        self,
        url: str | None = None,
        access_token: str | None = None,
        *,
        timeouts: Timeouts = TIMEOUTS,
        path: str = DEFAULT_PATH,
    ) -> None:
        super().__init__(url, access_token, timeouts=timeouts, path=path)
        self._connector = _AsyncConnector(self._api)

    async def _run(self, flow: Flow[T]) -> T:
        self._connector.check_loop()
        return await drive(flow, self._connector)

    async def _ask(self, asked: Asked, read: Callable[[Asked], T]) -> T:
        """Return what ``read`` makes of a call once it has all answers."""
        self._connector.check_loop()
        with self._api.session.pending.hold(asked):
            return read(await self._run(self._api.resolve(asked)))

    @property
    def unresolved(self) -> list[FilterAPIError]:
        """Calls that were cancelled before all answers were there; pass one as ``retry=`` to get them."""
        return self._api.unresolved()

    async def filter(
        self, filter_typeid: str, uris: Iterable[object], *, retry: FilterAPIError | None = None
    ) -> dict[str, Any]:
        """Insert items; see ``FilterAPIClient.filter``."""
        return await self._ask(self._api.filter(filter_typeid, uris, retry), attrgetter("told"))

    async def insert_many(
        self,
        filter_typeid: str,
        uris: Iterable[object],
        *,
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
    ) -> list[int]:
        """Insert items; return their ages, 0 for new."""
        return await self._ask(self._api.command(filter_typeid, "insert", uris, retry, max_age), attrgetter("whole"))

    async def unique(
        self,
        filter_typeid: str,
        uris: Iterable[T],
        *,
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
    ) -> list[T]:
        """Insert items; return those not seen before, in their order."""
        return await self._ask(self._api.command(filter_typeid, "insert", uris, retry, max_age), attrgetter("new"))

    async def contains_many(
        self, filter_typeid: str, uris: Iterable[object], *, max_age: int | None = None
    ) -> list[int]:
        """Return the ages of items, 0 for not seen; nothing is inserted."""
        return await self._ask(self._api.command(filter_typeid, "contains", uris, None, max_age), attrgetter("whole"))

    async def forget(
        self, filter_typeid: str, uris: Iterable[object], *, retry: FilterAPIError | None = None
    ) -> list[bool]:
        """Make items new again; return whether each was there."""
        return await self._ask(self._api.command(filter_typeid, "forget", uris, retry), attrgetter("truths"))

    async def remove(
        self, filter_typeid: str, uris: Iterable[object], *, retry: FilterAPIError | None = None
    ) -> list[bool]:
        """Take items out again, layout counting only; return whether each was there."""
        return await self._ask(self._api.command(filter_typeid, "remove", uris, retry), attrgetter("truths"))

    async def filters(self) -> list[str]:
        """Return the names of the filters that the token is for."""
        return (await self._run(self._api.get(FILTERS_PATH)))["filters"]  # type: ignore[no-any-return]

    async def info(self, filter_typeid: str) -> dict[str, Any]:
        """Return how a filter does; see ``FilterAPIClient.info``."""
        return await self._run(self._api.get(self._api.path_of(filter_typeid)))

    async def close(self) -> None:
        """Close the connections."""
        await self._connector.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
