"""The asyncio client of the HTTP service."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Self, TypeVar, Unpack

from urifilter_redis.claiming.awaited import AsyncClaims
from urifilter_redis.engine.batch import (
    AGES,
    CONTAINS_MANY,
    FORGET,
    INSERT_AGES,
    INSERT_MANY,
    REMOVE,
    UNIQUE,
    Key,
    Method,
)
from urifilter_redis.engine.driver import drive_async
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import FilterAPIError
from urifilter_redis.flows.checkpoint import Written
from urifilter_redis.flows.rotation import Rotation
from urifilter_redis.protocol.claims import DeadLetter, InFlight
from urifilter_redis.protocol.config import FilterSettings
from urifilter_redis.sdk.api import AsyncBaseClient
from urifilter_redis.sdk.calls import APICall
from urifilter_redis.sdk.claims_backend import HTTPClaims, dead_letters, in_flight, retry_dead_letters

T = TypeVar("T")


class AsyncAdmin(AsyncBaseClient):
    """The methods for tokens with ``access = "admin"``. Each may be repeated after an error: nothing is done twice.

    An action that takes longer than ``timeouts.reply`` goes on in the service. The client asks again, and waits for it
    until ``timeouts.total`` is over.
    """

    async def _run(self, flow: Flow[T]) -> T:
        self._check_open()
        self._connector.check_loop()
        return await drive_async(flow, self._connector)

    async def create(self, filter_typeid: str, *, large: bool = False, **settings: Unpack[FilterSettings]) -> str:
        """Make a filter; if it exists with these settings, do nothing.

        Args:
            filter_typeid: the filter's name: 1 to 64 of ``A-Z a-z 0-9 . _ -``.
            large: make the filter even if it leaves Redis too little free memory.
            settings: those of ``UriFilter.create``: ``capacity``, ``error_rate``, ``retention`` and so on.

        Returns:
            The uid of the filter.

        Raises:
            FilterAPIError: the service refused (``config_mismatch``: the filter exists with other settings;
                ``refused``: it is too large for Redis), or could not be reached.

        Example:
            >>> uid = await api.create("weather", capacity=1000, retention="ring", slices=3, period="1d")
            >>> len(uid)
            16
        """
        return await self._run(self._api.create(filter_typeid, settings, large=large))

    async def rotate(self, filter_typeid: str, expected_epoch: int | None = None, *, dry_run: bool = False) -> Rotation:
        """Rotate a ring or rolling filter once.

        Args:
            filter_typeid: the filter's name.
            expected_epoch: rotate only if the filter is in this epoch, so that one of many processes rotates; None: in
                the epoch that it is in now.
            dry_run: change nothing; return the epoch that would be reached.

        Returns:
            The epoch, the number of shards that this call turned, and the problems of the archive. No shard was turned
            if the filter was past ``expected_epoch`` already: others rotated it, or an attempt whose reply was lost.

        Raises:
            FilterAPIError: the service refused (``refused``: the filter does not rotate by time), or could not be
                reached.

        Example:
            >>> uid = await api.create("weather", capacity=1000, retention="ring", slices=3, period="1d")
            >>> (await api.rotate("weather", 0)).epoch, (await api.rotate("weather", 0)).shards
            (1, 0)
        """
        return await self._run(self._api.rotate(filter_typeid, expected_epoch, dry_run=dry_run))

    async def checkpoint(self, filter_typeid: str, *, full: bool = False) -> Written:
        """Write all changes since the last checkpoint to the service's archive; inserts go on meanwhile.

        Args:
            filter_typeid: the filter's name.
            full: write all shards, also unchanged ones; for an archive that was damaged.

        Raises:
            FilterAPIError: the service refused (``refused``: it has no archive), or could not be reached.

        Example:
            >>> await api.checkpoint("news")
            Traceback (most recent call last):
            urifilter_redis.errors.FilterAPIError: ...
        """
        return await self._run(self._api.checkpoint(filter_typeid, full=full))

    async def restore(self, filter_typeid: str) -> str:
        """Bring back from the service's archive the filter, or the parts of it, that Redis lacks.

        Args:
            filter_typeid: the filter's name.

        Returns:
            The uid of the filter.

        Raises:
            FilterAPIError: the service refused (``refused``: it has no archive; ``filter_not_found``), or could not be
                reached.

        Example:
            >>> await api.restore("news")
            Traceback (most recent call last):
            urifilter_redis.errors.FilterAPIError: ...
        """
        return await self._run(self._api.restore(filter_typeid))

    async def acknowledge(self, filter_typeid: str) -> int:
        """Note that you know of what restores of a filter may have lost, so that it is no problem any more.

        Args:
            filter_typeid: the filter's name.

        Returns:
            The number of shards whose restore was not acknowledged yet.

        Raises:
            FilterAPIError: the service refused, or could not be reached.

        Example:
            >>> await api.acknowledge("news")
            0
        """
        return await self._run(self._api.acknowledge(filter_typeid))

    async def union(self, filter_typeid: str, *sources: str, over_capacity: bool = False) -> int:
        """Insert all items that other filters have seen, of equal geometry, hash and seed.

        Args:
            filter_typeid: the filter's name.
            sources: the names of the other filters.
            over_capacity: merge them even if the result is over capacity, or wrong more often than was asked for.

        Returns:
            The approximate number of items that were added.

        Raises:
            FilterAPIError: the service refused (``config_mismatch``: a source is of another kind; ``over_capacity``:
                the result would be over capacity), or could not be reached.

        Example:
            >>> uid = await api.create("all", capacity=1000, seed=1)
            >>> uid = await api.create("monday", capacity=1000, seed=1)
            >>> await api.union("all", "monday")
            0
        """
        return await self._run(self._api.union(filter_typeid, sources, over_capacity=over_capacity))

    async def drop(self, filter_typeid: str, uid: str, *, keep_archive: bool = False) -> bool:
        """Remove a filter with all its items, and its archive unless ``keep_archive``.

        Args:
            filter_typeid: the filter's name.
            uid: its uid, as ``info`` and ``create`` tell it: no other filter of this name is removed.
            keep_archive: keep the filter in its archive, so that it can be restored.

        Returns:
            Whether there was a filter of this uid; False, too, if an attempt removed it whose reply was lost.

        Raises:
            FilterAPIError: the service refused (``refused``: its settings have the filter), or could not be reached.

        Example:
            >>> uid = await api.create("weather", capacity=1000)
            >>> await api.drop("weather", uid), await api.drop("weather", uid)
            (True, False)
        """
        return await self._run(self._api.drop(filter_typeid, uid, keep_archive=keep_archive))


class AsyncFilterAPIClient(AsyncAdmin):
    """An asyncio client of the HTTP service.

    Tasks may share it. Each event loop and each forked child gets connections of its own. As a context manager it
    closes its connections. It goes through pickle without its token, which ``URIFILTER_API_TOKEN`` gives there.

    A request that inserts carries a key, and the client repeats it under this key until its answer arrives. So "new" is
    answered exactly once, even if an answer is lost on the way.

    Args:
        url: the service's address; None: ``URIFILTER_API_URL``, else ``http://127.0.0.1:8000``.
        access_token: the token that the service's operator gave you; None: ``URIFILTER_API_TOKEN``, else no token.
        timeouts: how long to wait, in seconds; see ``Timeouts``.
        verify: the certificates to trust: a file or folder of CA certificates, or an ``ssl.SSLContext``; None: those of
            ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, else those of ``certifi``.
        proxy: the URL of a proxy to the service; None: no proxy. The environment's proxy is for crawling, and is
            ignored.

    Raises:
        ValueError: the address, the token, the certificates or the proxy cannot be used; the message says why.

    Example:
        >>> client = AsyncFilterAPIClient("http://localhost:8000")
        >>> await client.unique("news", ["https://example.com/", "https://example.com/"])
        ['https://example.com/']
        >>> await client.close()
    """

    async def _ask(  # noqa: PLR0913, PLR0917 - what a caller may say
        self,
        method: Method[T],
        filter_typeid: str,
        objects: Iterable[Any],
        max_age: int | None = None,
        retry: FilterAPIError | None = None,
        key: Key = None,
    ) -> T:
        """Ask about items; return the method's result once all answers are there."""
        call = self._api.question(method, filter_typeid, objects, max_age, retry, key)
        return await self._resolved(call, method.result)

    async def _resolved(self, call: APICall, read: Callable[[APICall], T]) -> T:
        """Get all answers of a call; return the result that ``read`` makes of them."""
        self._check_open()
        self._connector.check_loop()
        pending = self._api.session.pending
        pending.begin(call)
        try:
            return pending.answered(call, read(await self._run(self._api.resolve(call))))
        except BaseException as error:
            pending.failed(call, error)
            raise

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

    async def filter(
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
            >>> answer = await api.filter("news", ["https://example.com/", "https://example.com/"])
            >>> answer["URI_list_unique"], answer["total"], answer["unique"]
            (['https://example.com/'], 2, 1)
        """
        return await self._resolved(self._api.filter(filter_typeid, uris, retry), attrgetter("filter_answer"))

    async def insert_many(
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
            >>> await api.insert_many("news", ["https://example.com/", "https://example.com/a", "https://example.com/"])
            [True, True, False]
        """
        return await self._ask(INSERT_MANY, filter_typeid, uris, max_age, retry, key)

    async def insert_ages(
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
            >>> await api.insert_ages("news", ["https://example.com/", "https://example.com/a", "https://example.com/"])
            [0, 0, 1]
        """
        return await self._ask(INSERT_AGES, filter_typeid, uris, max_age, retry, key)

    async def unique(
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
            >>> await api.unique("news", ["https://example.com/", "https://example.com/"])
            ['https://example.com/']
            >>> await api.unique("news", ["https://example.com/", "https://example.com/a"])
            ['https://example.com/a']
        """
        return await self._ask(UNIQUE, filter_typeid, uris, max_age, retry, key)

    async def contains_many(
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
            >>> await api.unique("news", ["https://example.com/"])
            ['https://example.com/']
            >>> await api.contains_many("news", ["https://example.com/", "https://example.com/a"])
            [True, False]
        """
        return await self._ask(CONTAINS_MANY, filter_typeid, uris, max_age, None, key)

    async def ages(
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
            >>> await api.unique("news", ["https://example.com/"])
            ['https://example.com/']
            >>> await api.ages("news", ["https://example.com/", "https://example.com/a"])
            [1, 0]
        """
        return await self._ask(AGES, filter_typeid, uris, max_age, None, key)

    async def forget(
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
            >>> await api.unique("news", ["https://example.com/"])
            ['https://example.com/']
            >>> await api.forget("news", ["https://example.com/", "https://example.com/a"])
            [True, False]
            >>> await api.unique("news", ["https://example.com/"])
            ['https://example.com/']
        """
        return await self._ask(FORGET, filter_typeid, uris, None, retry, key)

    async def remove(
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
            >>> await api.unique("queue", ["https://example.com/"])
            ['https://example.com/']
            >>> await api.remove("queue", ["https://example.com/", "https://example.com/a"])
            [True, False]
        """
        return await self._ask(REMOVE, filter_typeid, uris, None, retry, key)

    def claims(self, filter_typeid: str, lease: float = 60, name: str | None = None) -> AsyncClaims:
        """Return an object that claims items: their "new" is final only once they are committed.

        Its methods are those of ``urifilter_redis.Claims``. Items and payloads are JSON values; bytes that another
        client has claimed come from ``reclaim`` as bytes. All errors are ``FilterAPIError``, or ValueError.

        Args:
            filter_typeid: the filter's name.
            lease: seconds for which items stay in flight without a sign of life, 5 to 3600.
            name: a name for display; two objects of one name are two holders.

        Raises:
            ValueError: the lease is impossible.

        Example:
            >>> async with api.claims("news") as mine:
            ...     todo = await mine.unique(["https://example.com/a", "https://example.com/b"])
            ...     done = await mine.commit(todo)
            >>> done
            [True, True]
        """
        self._check_open()
        made = AsyncClaims(HTTPClaims(self._api, filter_typeid, lease), self._run, self._run, name=name)
        self._claimed.add(made)
        return made

    async def in_flight(self, filter_typeid: str, limit: int = 100) -> list[InFlight]:
        """Return items that somebody has in flight, with their holders and counts; in no order.

        A holder is told by the name that Redis knows, which the service makes of the token and of ``Claims.holder``.
        The token must allow writing, as for claims.

        Args:
            filter_typeid: the filter's name.
            limit: the most items.

        Raises:
            FilterAPIError: the service refused, or could not be reached.
            ValueError: the limit is no number of items.

        Example:
            >>> await api.in_flight("news")
            []
        """
        return await self._run(in_flight(self._api, filter_typeid, limit))

    async def dead_letters(self, filter_typeid: str, limit: int = 100) -> list[DeadLetter]:
        """Return dead letters, the latest first; see ``reject`` of claims.

        The token must allow writing, as for claims.

        Args:
            filter_typeid: the filter's name.
            limit: the most items.

        Raises:
            FilterAPIError: the service refused, or could not be reached.
            ValueError: the limit is no number of items.

        Example:
            >>> await api.dead_letters("news")
            []
        """
        return await self._run(dead_letters(self._api, filter_typeid, limit))

    async def retry_dead_letters(
        self,
        filter_typeid: str,
        uris: Iterable[Any] | None = None,
        *,
        key: Key = None,
        retry: FilterAPIError | None = None,
    ) -> int:
        """Offer dead letters once more, by ``reclaim``, without failures and lapses; return how many.

        Args:
            filter_typeid: the filter's name.
            uris: any number of items; those that are no dead letters stay as they are. None: all dead letters.
            key: makes an item of each of the caller's objects; None: the objects are the items.
            retry: the error that this method raised for the same arguments; only items without an answer are asked
                again. It is valid for eight minutes, in the process that got it.

        Returns:
            How many items this call offers. Without ``uris`` it may be too few after a lost answer, though all are
            offered.

        Raises:
            FilterAPIError: some items cannot be filtered (``bad_item``), the service refused, or could not be reached.
                ``answers`` has the answers that arrived. After ``error_code`` ``answer_lost`` the service may have done
                it: pass the error as ``retry=``.
            TypeError: one string was given instead of a list.
            ValueError: ``retry`` is the error of another call.

        Example:
            >>> await api.retry_dead_letters("news")
            0
        """
        call = retry_dead_letters(self._api, filter_typeid, uris, key, retry)
        offered: int = await self._resolved(call, attrgetter("offered"))
        return offered

    async def filters(self) -> list[str]:
        """Return the names of the filters that the access token may use.

        Returns:
            The names, sorted.

        Raises:
            FilterAPIError: the service refused, or could not be reached.

        Example:
            >>> await api.filters()
            ['news', 'queue']
        """
        return await self._run(self._api.names())

    async def info(self, filter_typeid: str) -> dict[str, Any]:
        """Return a filter's state: its settings, fill, error rate, slices and times.

        Args:
            filter_typeid: the filter's name.

        Returns:
            ``filter``: the filter's name; ``now``: the time of Redis, in seconds since 1970; ``measured``: when
            the state was read, likewise; ``answered``: how many items this service answered ``new`` and ``seen``, since
            it started; ``info``: the fields of ``FilterInfo``; ``problem``: only if there is one, its description.

        Raises:
            FilterAPIError: the service refused, or could not be reached.

        Example:
            >>> told = await api.info("news")
            >>> told["info"]["capacity"], told["info"]["layout"]
            (1000, 'blocked')
        """
        told = await self._run(self._api.get(self._api.path_of(filter_typeid, "info")))
        counts = told["info"]["claims"] or {}
        for each in list(self._claimed):
            if each._backend.name == filter_typeid:  # noqa: SLF001 - parts of one client
                each._holdings.note_total(sum(counts.get(name, 0) for name in ("in_flight", "lapsed", "delayed")))  # noqa: SLF001
        return told

    async def close(self) -> None:
        """Close the connections, those of this event loop; a later call raises ValueError.

        Example:
            >>> await api.close()
        """
        self._closed = True
        try:
            for each in list(self._claimed):
                await each._end_beating()  # noqa: SLF001 - parts of one client
        finally:
            await self._connector.close()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
