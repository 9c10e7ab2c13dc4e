"""The blocking client of the service."""

from __future__ import annotations

import os
import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from urifilter_redis.engine.driver import drive
from urifilter_redis.http_api import DEFAULT_PATH, FILTERS_PATH
from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.sdk.api import API, TIMEOUTS, Client
from urifilter_redis.sdk.responses import failed, judged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from urifilter_redis.engine.steps import Flow, Timeouts
    from urifilter_redis.errors import FilterAPIError
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.sdk.asked import Asked

__all__ = ["FilterAPI", "FilterAPIClient"]

T = TypeVar("T")


class _Connector:
    """Sends requests, blocking; thread-safe, and after a fork over connections of its own."""

    def __init__(self, api: API) -> None:
        self._api = api
        self._clients: dict[int, httpx.Client] = {}  # by process: a child leaves its parent's connections alone

    def send(self, commands: Sequence[Arguments]) -> list[Any]:
        """Send requests once, one after the other; return an outcome for each (see ``steps.Send``)."""
        return [self._send(command) for command in commands]

    def _send(self, command: Arguments) -> Any:
        client = self._clients.get(os.getpid()) or self._connect()
        attempt = secrets.token_hex(8)
        try:
            response = client.request(**self._api.request(command, attempt))
        except httpx.HTTPError as error:
            return failed(error)
        outcome = judged(self._api.session, attempt, response)
        if isinstance(outcome, Unanswered):
            response.extensions["network_stream"].close()
        return outcome

    def _connect(self) -> httpx.Client:
        made = httpx.Client(**self._api.options)
        kept = self._clients.setdefault(os.getpid(), made)  # of several threads at once the first; no lock to fork with
        if kept is not made:
            made.close()
        return kept

    def close(self) -> None:
        """Close this process's connections."""
        if client := self._clients.pop(os.getpid(), None):
            client.close()


class FilterAPIClient(Client):
    """Asks the service, blocking; it may be shared by threads and used after a fork. A context manager.

    It goes through pickle without its token, which ``URIFILTER_API_TOKEN`` gives there.

    Args:
        url: of the service; None: ``URIFILTER_API_URL``, else ``http://127.0.0.1:8000``.
        access_token: None: ``URIFILTER_API_TOKEN``, else none.
        timeouts: how long to wait, in seconds; ``total`` for repeating what got no answer, ``restoring`` for a filter
            that is being brought back from its archive.
        path: of the endpoint that ``filter`` asks, if the service's settings have another.

    All methods raise:
        FilterAPIError: the service refused or could not be reached; with ``error_code`` ``answer_lost`` it may have
            inserted: pass the error as ``retry=`` to the same method with the same items, within eight minutes.
        ValueError: ``retry=`` is not of this call.
        TypeError: one string was given instead of a list.
    """

    def __init__(
        self,
        url: str | None = None,
        access_token: str | None = None,
        *,
        timeouts: Timeouts = TIMEOUTS,
        path: str = DEFAULT_PATH,
    ) -> None:
        super().__init__(url, access_token, timeouts=timeouts, path=path)
        self._connector = _Connector(self._api)

    def _run(self, flow: Flow[T]) -> T:
        return drive(flow, self._connector)

    def _ask(self, asked: Asked, read: Callable[[Asked], T]) -> T:
        """Return what ``read`` makes of a call once it has all answers."""
        with self._api.session.pending.hold(asked):
            return read(self._run(self._api.resolve(asked)))

    @property
    def unresolved(self) -> list[FilterAPIError]:
        """Calls that were interrupted before all answers were there; pass one as ``retry=`` to get them."""
        return self._api.unresolved()

    def filter(
        self, filter_typeid: str, uris: Iterable[object], *, retry: FilterAPIError | None = None
    ) -> dict[str, Any]:
        """Insert items; return ``filter_typeid``, ``URI_list_unique`` (the new ones), ``total`` and ``unique``."""
        return self._ask(self._api.filter(filter_typeid, uris, retry), attrgetter("told"))

    def insert_many(
        self,
        filter_typeid: str,
        uris: Iterable[object],
        *,
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
    ) -> list[int]:
        """Insert items; return their ages, 0 for new; see ``UriFilter.insert_many``."""
        return self._ask(self._api.command(filter_typeid, "insert", uris, retry, max_age), attrgetter("whole"))

    def unique(
        self,
        filter_typeid: str,
        uris: Iterable[T],
        *,
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
    ) -> list[T]:
        """Insert items; return those not seen before, in their order."""
        return self._ask(self._api.command(filter_typeid, "insert", uris, retry, max_age), attrgetter("new"))

    def contains_many(self, filter_typeid: str, uris: Iterable[object], *, max_age: int | None = None) -> list[int]:
        """Return the ages of items, 0 for not seen; nothing is inserted."""
        return self._ask(self._api.command(filter_typeid, "contains", uris, None, max_age), attrgetter("whole"))

    def forget(self, filter_typeid: str, uris: Iterable[object], *, retry: FilterAPIError | None = None) -> list[bool]:
        """Make items new again; return whether each was there."""
        return self._ask(self._api.command(filter_typeid, "forget", uris, retry), attrgetter("truths"))

    def remove(self, filter_typeid: str, uris: Iterable[object], *, retry: FilterAPIError | None = None) -> list[bool]:
        """Take items out again, layout counting only; return whether each was there."""
        return self._ask(self._api.command(filter_typeid, "remove", uris, retry), attrgetter("truths"))

    def filters(self) -> list[str]:
        """Return the names of the filters that the token is for."""
        return self._run(self._api.get(FILTERS_PATH))["filters"]  # type: ignore[no-any-return]

    def info(self, filter_typeid: str) -> dict[str, Any]:
        """Return how a filter does: ``now``, ``measured``, ``answered`` and ``info`` (see ``FilterInfo``)."""
        return self._run(self._api.get(self._api.path_of(filter_typeid)))

    def close(self) -> None:
        """Close the connections."""
        self._connector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def FilterAPI(  # noqa: N802, PLR0913 - the name that crawlers know, and what they can say
    filter_typeid: str,
    URI_list: Iterable[object],  # noqa: N803 - likewise
    access_token: str | None = None,
    *,
    url: str | None = None,
    timeouts: Timeouts = TIMEOUTS,
    retry: FilterAPIError | None = None,
) -> dict[str, Any]:
    """Insert items by one call, over a connection of its own; see ``FilterAPIClient.filter``."""
    with FilterAPIClient(url, access_token, timeouts=timeouts) as api:
        return api.filter(filter_typeid, URI_list, retry=retry)
