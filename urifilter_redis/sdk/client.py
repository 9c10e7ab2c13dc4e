"""The blocking client of the HTTP service."""

from __future__ import annotations

import os
import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from urifilter_redis.claiming.blocking import Claims
from urifilter_redis.engine import methods
from urifilter_redis.engine.driver import drive
from urifilter_redis.http_api import FILTERS_PATH
from urifilter_redis.protocol.outcomes import Unanswered
from urifilter_redis.sdk.acting import Acting
from urifilter_redis.sdk.api import API, Client
from urifilter_redis.sdk.claims import ByService
from urifilter_redis.sdk.reaching import TIMEOUTS
from urifilter_redis.sdk.responses import failed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from urifilter_redis.engine.given import Key
    from urifilter_redis.engine.methods import Method
    from urifilter_redis.engine.steps import Flow, Timeouts
    from urifilter_redis.errors import FilterAPIError
    from urifilter_redis.protocol.calls import Arguments
    from urifilter_redis.sdk.asked import Asked
    from urifilter_redis.sdk.reaching import Verify

__all__ = ["FilterAPI", "FilterAPIClient"]

T = TypeVar("T")


class _Connector:
    """Sends requests and blocks; threads may share it, and each process has connections of its own."""

    def __init__(self, api: API) -> None:
        self._api = api
        self._clients: dict[int, httpx.Client] = {}  # by process: a child leaves its parent's connections alone

    def send(self, commands: Sequence[Arguments], _: object = None) -> list[Any]:
        """Send each request once, one after the other; return an outcome for each (see ``steps.Send``)."""
        return [self._send(command) for command in commands]

    def _send(self, command: Arguments) -> Any:
        client = self._clients.get(os.getpid()) or self._connect()
        attempt = secrets.token_hex(8)
        try:
            response = client.request(**self._api.request(command, attempt))
        except httpx.HTTPError as error:
            return failed(self._api.session, error)
        outcome = self._api.judged(attempt, response)
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


class FilterAPIClient(Acting, Client):
    """A blocking client of the HTTP service.

    Threads may share it, and a forked child may go on using it. As a context manager it closes its connections.

    A request that inserts carries a key, and the client repeats it under this key until its answer arrives. So "new" is
    answered exactly once, even if an answer is lost on the way.

    It goes through pickle without its token, which ``URIFILTER_API_TOKEN`` gives there.

    Args:
        url: the service's address; None: ``URIFILTER_API_URL``, else ``http://127.0.0.1:8000``.
        access_token: the token that the service's operator gave you; None: ``URIFILTER_API_TOKEN``, else no token.
        timeouts: how long to wait, in seconds; see ``Timeouts``.
        path: the path of the endpoint that ``filter`` asks, if the service's settings name another.
        verify: the certificates to trust: a file or folder of CA certificates, or an ``ssl.SSLContext``; None: those of
            ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, else those of ``certifi``.
        proxy: the URL of a proxy to the service; None: no proxy. The environment's proxy is for crawling, and is
            ignored.

    Raises:
        ValueError: the address, the token, the certificates or the proxy cannot be used; the message says why.

    Example:
        >>> client = FilterAPIClient("http://localhost:8000")
        >>> client.unique("news", ["https://example.com/", "https://example.com/"])
        ['https://example.com/']
        >>> client.close()
    """

    _connector: _Connector
    _connector_of = _Connector

    def _run(self, flow: Flow[T]) -> T:
        self._check_open()
        return drive(flow, self._connector)

    def _ask(  # noqa: PLR0913, PLR0917 - what a caller may say
        self,
        method: Method[T],
        filter_typeid: str,
        objects: Iterable[Any],
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
        key: Key = None,
    ) -> T:
        """Ask about items; return the method's result once all answers are there."""
        asked = self._api.question(method, filter_typeid, objects, max_age, retry, key)
        return self._resolved(asked, method.result)

    def _resolved(self, asked: Asked, read: Callable[[Asked], T]) -> T:
        """Get all answers of a call; return the result that ``read`` makes of them."""
        self._check_open()
        with self._api.session.pending.hold(asked):
            return read(self._run(self._api.resolve(asked)))

    @property
    def unresolved(self) -> list[FilterAPIError]:
        """The calls that were interrupted before all their answers had arrived, as errors.

        Pass one as ``retry=`` to the same method with the same arguments, and the missing answers arrive.

        Returns:
            A ``FilterAPIError`` for each call that this process began; empty if none was interrupted.

        Example:
            >>> api.unresolved
            []
        """
        return self._api.unresolved()

    def filter(
        self, filter_typeid: str, uris: Iterable[object], *, retry: FilterAPIError | None = None
    ) -> dict[str, Any]:
        """Insert items; return the service's whole answer about the new ones.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            retry: the error that this method raised for the same arguments; only items without an answer are asked
                again. It is valid for eight minutes, in the process that got it.

        Returns:
            ``filter_typeid`` (the filter's name), ``URI_list_unique`` (the new items in their order, each once),
            ``total`` (the number of items) and ``unique`` (the number of new ones).

        Raises:
            FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived.
                After ``error_code`` ``answer_lost`` the service may have made the change: pass the error as ``retry=``.
            TypeError: one string was given instead of a list of items.
            ValueError: ``retry`` is the error of another call.

        Example:
            >>> answer = api.filter("news", ["https://example.com/", "https://example.com/"])
            >>> answer["URI_list_unique"], answer["total"], answer["unique"]
            (['https://example.com/'], 2, 1)
        """
        return self._resolved(self._api.filter(filter_typeid, uris, retry), attrgetter("told"))

    def insert_many(
        self,
        filter_typeid: str,
        uris: Iterable[Any],
        *,
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
        key: Key = None,
    ) -> list[bool]:
        """Insert items; return whether each is new.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            max_age: ring: look only at so many of the newest slices; None: at all of them.
            retry: the error that this method, or another one that inserts, raised for the same items; only items
                without an answer are asked again. It is valid for eight minutes, in the process that got it.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            True for each item that is new, False for one that was seen, in the order of the items.

        Raises:
            FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived.
                After ``error_code`` ``answer_lost`` the service may have made the change: pass the error as ``retry=``.
            TypeError: one string was given instead of a list of items.
            ValueError: ``retry`` is the error of another call.

        Example:
            >>> api.insert_many("news", ["https://example.com/", "https://example.com/a", "https://example.com/"])
            [True, True, False]
        """
        return self._ask(methods.INSERT_MANY, filter_typeid, uris, max_age, retry, key)

    def insert_ages(
        self,
        filter_typeid: str,
        uris: Iterable[Any],
        *,
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
        key: Key = None,
    ) -> list[int]:
        """Insert items; return their ages.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            max_age: ring: look only at so many of the newest slices; None: at all of them.
            retry: the error that this method, or another one that inserts, raised for the same items; only items
                without an answer are asked again. It is valid for eight minutes, in the process that got it.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            An age for each item: 0 if it is new, n if it was seen in the n-th newest slice.

        Raises:
            FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived.
                After ``error_code`` ``answer_lost`` the service may have made the change: pass the error as ``retry=``.
            TypeError: one string was given instead of a list of items.
            ValueError: ``retry`` is the error of another call.

        Example:
            >>> api.insert_ages("news", ["https://example.com/", "https://example.com/a", "https://example.com/"])
            [0, 0, 1]
        """
        return self._ask(methods.INSERT_AGES, filter_typeid, uris, max_age, retry, key)

    def unique(
        self,
        filter_typeid: str,
        uris: Iterable[T],
        *,
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
        key: Callable[[T], object] | None = None,
    ) -> list[T]:
        """Insert items; return the new ones.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            max_age: ring: look only at so many of the newest slices; None: at all of them.
            retry: the error that this method, or another one that inserts, raised for the same items; only items
                without an answer are asked again. It is valid for eight minutes, in the process that got it.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            The items that nobody had inserted before, in their order, each once.

        Raises:
            FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived.
                After ``error_code`` ``answer_lost`` the service may have made the change: pass the error as ``retry=``.
            TypeError: one string was given instead of a list of items.
            ValueError: ``retry`` is the error of another call.

        Example:
            >>> api.unique("news", ["https://example.com/", "https://example.com/"])
            ['https://example.com/']
            >>> api.unique("news", ["https://example.com/", "https://example.com/a"])
            ['https://example.com/a']
        """
        return self._ask(methods.UNIQUE, filter_typeid, uris, max_age, retry, key)

    def contains_many(
        self, filter_typeid: str, uris: Iterable[Any], *, max_age: int | None = None, key: Key = None
    ) -> list[bool]:
        """Return whether each item was seen; nothing is inserted.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            max_age: ring: look only at so many of the newest slices; None: at all of them.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            True for each item that was seen, in the order of the items.

        Raises:
            FilterAPIError: the service refused, or could not be reached.
            TypeError: one string was given instead of a list of items.

        Example:
            >>> api.unique("news", ["https://example.com/"])
            ['https://example.com/']
            >>> api.contains_many("news", ["https://example.com/", "https://example.com/a"])
            [True, False]
        """
        return self._ask(methods.CONTAINS_MANY, filter_typeid, uris, max_age, None, key)

    def ages(
        self, filter_typeid: str, uris: Iterable[Any], *, max_age: int | None = None, key: Key = None
    ) -> list[int]:
        """Return the ages of items; nothing is inserted.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            max_age: ring: look only at so many of the newest slices; None: at all of them.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            An age for each item: 0 if it was not seen, n if it was seen in the n-th newest slice.

        Raises:
            FilterAPIError: the service refused, or could not be reached.
            TypeError: one string was given instead of a list of items.

        Example:
            >>> api.unique("news", ["https://example.com/"])
            ['https://example.com/']
            >>> api.ages("news", ["https://example.com/", "https://example.com/a"])
            [1, 0]
        """
        return self._ask(methods.AGES, filter_typeid, uris, max_age, None, key)

    def forget(
        self, filter_typeid: str, uris: Iterable[Any], *, retry: FilterAPIError | None = None, key: Key = None
    ) -> list[bool]:
        """Make items new again; return whether each was there.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            retry: the error that this method raised for the same arguments; only items without an answer are asked
                again. It is valid for eight minutes, in the process that got it.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            For each item: True if it was there, False if it was new already.

        Raises:
            FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived.
                After ``error_code`` ``answer_lost`` the service may have made the change: pass the error as ``retry=``.
            TypeError: one string was given instead of a list of items.
            ValueError: ``retry`` is the error of another call.

        Example:
            >>> api.unique("news", ["https://example.com/"])
            ['https://example.com/']
            >>> api.forget("news", ["https://example.com/", "https://example.com/a"])
            [True, False]
            >>> api.unique("news", ["https://example.com/"])
            ['https://example.com/']
        """
        return self._ask(methods.FORGET, filter_typeid, uris, None, retry, key)

    def remove(
        self, filter_typeid: str, uris: Iterable[Any], *, retry: FilterAPIError | None = None, key: Key = None
    ) -> list[bool]:
        """Take items out of a filter of layout counting; return whether each was there.

        Remove only items that certainly were inserted. Removing any other may hide items that were. ``forget`` is safe
        for all items, in every layout.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items: URIs, or any other JSON values. Long lists go out as several requests, one after
                the other.
            retry: the error that this method raised for the same arguments; only items without an answer are asked
                again. It is valid for eight minutes, in the process that got it.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            For each item: True if it was there and was taken out, False if it was not there.

        Raises:
            FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived.
                After ``error_code`` ``answer_lost`` the service may have made the change: pass the error as ``retry=``.
            TypeError: one string was given instead of a list of items.
            ValueError: ``retry`` is the error of another call.

        Example:
            >>> api.unique("queue", ["https://example.com/"])
            ['https://example.com/']
            >>> api.remove("queue", ["https://example.com/", "https://example.com/a"])
            [True, False]
        """
        return self._ask(methods.REMOVE, filter_typeid, uris, None, retry, key)

    def claims(self, filter_typeid: str, lease: float = 60, name: str | None = None) -> Claims:
        """Return an object that claims items: their "new" is final only once they are committed.

        Its methods are those of ``urifilter_redis.Claims``. Items and payloads are JSON values; bytes that another
        client has claimed come from ``reclaim`` as bytes. All errors are ``FilterAPIError``, or ValueError.

        Args:
            filter_typeid: the filter's name.
            lease: seconds for which items stay in hand without a sign of life, 5 to 3600.
            name: a name for display; two objects of one name are two holders.

        Raises:
            ValueError: the lease is impossible.

        Example:
            >>> with api.claims("news") as mine:
            ...     todo = mine.unique(["https://example.com/a", "https://example.com/b"])
            ...     done = mine.commit(todo)
            >>> done
            [True, True]
        """
        self._check_open()
        made = Claims(ByService(self._api, filter_typeid, lease), self._run, self._run, name=name)
        self._claimed.add(made)
        return made

    def filters(self) -> list[str]:
        """Return the names of the filters that the access token may use.

        Returns:
            The names, sorted.

        Raises:
            FilterAPIError: the service refused, or could not be reached.

        Example:
            >>> api.filters()
            ['news', 'queue']
        """
        return self._run(self._api.get(FILTERS_PATH))["filters"]  # type: ignore[no-any-return]

    def info(self, filter_typeid: str) -> dict[str, Any]:
        """Return a filter's state: its settings, fill, error rate, slices and times.

        Args:
            filter_typeid: the filter's name.

        Returns:
            ``filter_typeid``: the filter's name; ``now``: the time of Redis, in seconds since 1970; ``measured``: when
            the state was read, likewise; ``answered``: how many items this service answered ``new`` and ``seen``, since
            it started; ``info``: the fields of ``FilterInfo``; ``problem``: only if there is one, its description.

        Raises:
            FilterAPIError: the service refused, or could not be reached.

        Example:
            >>> told = api.info("news")
            >>> told["info"]["capacity"], told["info"]["layout"]
            (1000, 'blocked')
        """
        return self._run(self._api.get(self._api.path_of(filter_typeid)))

    def close(self) -> None:
        """Close the connections, those of this process; a later call raises ValueError.

        Example:
            >>> api.close()
        """
        self._closed = True
        try:
            for each in list(self._claimed):
                each._end_beats()  # noqa: SLF001 - parts of one client
        finally:
            self._connector.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def FilterAPI(  # noqa: N802, PLR0913 - the name that crawlers know, and what they can say
    filter_typeid: str,
    URI_list: Iterable[object],  # noqa: N803 - likewise
    access_token: str | None = None,
    *,
    url: str | None = None,
    timeouts: Timeouts = TIMEOUTS,
    verify: Verify = None,
    proxy: str | None = None,
    retry: FilterAPIError | None = None,
) -> dict[str, Any]:
    """Insert items over a connection that is opened for this call; return the new ones.

    Use a ``FilterAPIClient`` for more than one call: it keeps its connections.

    Args:
        filter_typeid: the filter's name.
        URI_list: any number of items: URIs, or any other JSON values.
        access_token: the token that the service's operator gave you; None: ``URIFILTER_API_TOKEN``, else no token.
        url: the service's address; None: ``URIFILTER_API_URL``, else ``http://127.0.0.1:8000``.
        timeouts: how long to wait, in seconds; see ``Timeouts``.
        verify: the certificates to trust: a file or folder of CA certificates, or an ``ssl.SSLContext``; None: those of
            ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, else those of ``certifi``.
        proxy: the URL of a proxy to the service; None: no proxy.
        retry: the error that this function raised for the same items; only items without an answer are asked again. It
            is valid for eight minutes, in the process that got it.

    Returns:
        ``filter_typeid`` (the filter's name), ``URI_list_unique`` (the new items in their order, each once), ``total``
        (the number of items) and ``unique`` (the number of new ones).

    Raises:
        FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived. After
            ``error_code`` ``answer_lost`` the service may have inserted the items: pass the error as ``retry=``.
        TypeError: one string was given instead of a list of items.
        ValueError: ``retry`` is the error of another call, or the address, the token, the certificates or the proxy
            cannot be used.

    Example:
        >>> FilterAPI("news", ["https://example.com/", "https://example.com/"], url="http://localhost:8000")
        {'filter_typeid': 'news', 'URI_list_unique': ['https://example.com/'], 'total': 2, 'unique': 1}
    """
    with FilterAPIClient(url, access_token, timeouts=timeouts, verify=verify, proxy=proxy) as api:
        return api.filter(filter_typeid, URI_list, retry=retry)
