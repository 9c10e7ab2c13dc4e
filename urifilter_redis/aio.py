"""The asyncio client: the methods of filters, each of which drives a flow."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

import redis.asyncio as redis_asyncio

from urifilter_redis.base_async import AsyncBaseClient, Opening, windows
from urifilter_redis.base_client import ClientOptions, with_settings
from urifilter_redis.checks import check_flag
from urifilter_redis.claiming.awaited import AsyncClaims
from urifilter_redis.claiming.claims_backend import RedisClaims
from urifilter_redis.engine.batch import (
    AGES,
    COMMIT,
    CONTAINS,
    CONTAINS_MANY,
    FORGET,
    INSERT,
    INSERT_AGES,
    INSERT_MANY,
    RELEASE,
    REMOVE,
    UNIQUE,
    Key,
    listed,
)
from urifilter_redis.engine.holdings import Committing
from urifilter_redis.engine.near_cache import SECONDS, NearCacheSettings
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows import claims, dead_letters, dropping, items, lifecycle, reclaim, rotation
from urifilter_redis.flows.checkpoint import Written, checkpoint, checkpoint_age
from urifilter_redis.flows.info import FilterInfo, info, inserted
from urifilter_redis.flows.loss import acknowledge
from urifilter_redis.flows.rotation import Rotation
from urifilter_redis.flows.union import union
from urifilter_redis.protocol.claims import NO_HOLDER, DeadLetter, InFlight, check_limit
from urifilter_redis.protocol.config import FilterSettings, Settings
from urifilter_redis.protocol.keys import DEFAULT_PREFIX
from urifilter_redis.transport.url import READS

T = TypeVar("T")


class AsyncUriFilter(AsyncBaseClient):
    """A shared set of seen items, inside a Redis or Valkey server, for asyncio.

    Make one with ``create`` or ``open``. Tasks may share it, and a forked child may use it. It is a context manager
    that closes itself.

    An interrupted or cancelled call may have inserted its items: ``unresolved`` has the call, and ``retry=`` gets its
    answers.

    ``insert`` and ``contains`` of many tasks are sent together: while one such call is under way, others wait, for
    ``Timeouts.total`` at most, and go in the next. The only call of a client is sent at once. ``close`` waits until all
    are answered or have failed.

    A filter that comes out of pickle, or is a copy, opens at its first call. That call raises as ``open`` does, and
    ConfigMismatch if another filter has the name by then. No password goes through pickle: ``URIFILTER_REDIS_URL`` and
    ``URIFILTER_ARCHIVE`` give it. A filter that was opened with a client object is neither pickled nor copied: it
    raises TypeError.

    Example:
        >>> news = await AsyncUriFilter.create("news", capacity=1000)
        >>> await news.unique(["https://example.com/a", "https://example.com/a"])
        ['https://example.com/a']
    """

    @classmethod
    @with_settings
    def create(  # noqa: PLR0913 - the settings of a filter
        cls,
        name: str,
        *,
        large: bool = False,
        items: str | None = None,
        archive: str | None = None,
        redis: str | redis_asyncio.Redis | redis_asyncio.RedisCluster | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
        connections: int | None = None,
        wait_replicas: int = 0,
        reads: str = READS[0],
        rotate: str | None = None,
        near_cache: int = 0,
        near_cache_seconds: float = SECONDS,
        coalesce: bool = True,
        **settings: Unpack[FilterSettings],
    ) -> Opening[Self]:
        """Make a filter, or open it if it is there with the same settings.

        Args:
            name: the filter's name: 1 to 64 of ``A-Z a-z 0-9 . _ -``.
            capacity: the number of items that the whole window holds (growing: the first slice).
            error_rate: the probability, at capacity, that an unseen item is answered "seen", over all slices.
            layout: ``blocked`` (fast), ``classic`` (smallest), ``counting`` (items can be removed; forever only), or
                ``redisbloom`` (fastest; the server must have the commands ``BF.*``; no archive).
            retention: ``forever``, ``growing``, ``ring`` or ``rolling``.
            slices: ring and rolling: the window in periods; an item expires that many rotations later.
            period: ring and rolling: time between rotations: ``45s``, ``10m``, ``6h``, ``1d``, ``2w``, seconds, or
                a ``timedelta``.
            write: ring: ``newest`` (write one slice, test all) or ``all`` (write all slices, test one); None: newest.
            expire_after: ring and rolling: ``first-seen`` or ``last-seen``; None: first-seen.
            period_capacity: ring with write newest: the most new items of one period; None: 2 capacity / slices.
            shards: 1 to 4096, above 64 a power of two; None: one, or one for each master of a cluster, and as few more
                as the retention needs. A shard has as many bitmaps, of under 16 MiB, as its slices need (layout
                ``redisbloom``: filters of up to 64 MiB).
            normalize: ``none``, ``whatwg``, ``sorted`` or ``loose``.
            rules: normalize sorted or loose: what else tells no pages apart on some hosts: a list of dictionaries, its
                JSON text, or the ``Path`` of a TOML file; None: none, or those that the filter has.
            hash: ``mmh3``, ``md5`` or ``blake2b`` (keyed: for hostile input).
            seed: for mmh3 a 32-bit number, for blake2b 32 hex digits; None: random.
            large: make the filter even if it leaves the server too little free memory.
            items: what the items are, in a word of yours: ``config.items`` of a new filter has it, for callers that
                would ask about others; None: it is not known.
            archive: the place of checkpoints and closed slices: ``file:///…`` or ``mongodb://…/database``; None:
                ``URIFILTER_ARCHIVE``, else no archive (rolling: closed slices stay in Redis).
            redis: a URL, a ``redis.asyncio.Redis`` or a ``redis.asyncio.RedisCluster``; None:
                ``URIFILTER_REDIS_URL``, else the embedded server.
            prefix: the beginning of all keys.
            timeouts: how long to wait for the server, and for a free connection to it (``total``).
            connections: the most connections to the server, in each process and event loop; callers wait for a free
                one in their order; None: 64. ``max_connections`` in the URL, or of a given client, comes first. Each
                node of a Redis Cluster may have so many.
            wait_replicas: the number of replicas that must have a change in time before its answer counts, so that the
                failover of a master loses no answer; ``wait_replicas`` in the URL says the same.
            reads: ``master``, or ``replicas``: a replica answers ``contains`` if there is one. It may not know yet what
                was inserted, or forgotten, a moment ago; ``reads`` in the URL says the same.
            rotate: ``auto``: inserting turns a ring, and rolling with closed slices in Redis, when a period is over;
                ``never``: only worker, cron and ``rotate`` do; None: ``URIFILTER_ROTATE``, else auto.
            near_cache: the most digests of seen items to keep in this object, so that it need not ask the server about
                them again (some 100 bytes each); 0: none.
            near_cache_seconds: the longest time to keep one, and at most a tenth of ``period``. An item that another
                process forgets, or that expires, is answered "seen" for so long.
            coalesce: whether ``insert`` and ``contains`` of many tasks are sent together: while one call is under way,
                others wait, and go in the next.

        Raises:
            ValueError: a setting is not possible.
            TooLarge: the filter does not fit into the server's free memory, or leaves too little without ``large``.
            ConfigMismatch: the filter exists with other settings; the error names each.
            SliceLost: parts of the filter are missing.
            Restoring: another process is restoring the filter from its archive.
            ArchiveError: the archive is away or damaged, was not named, or belongs to another filter.
            ServerUnavailable: the server cannot be reached, or refuses the connection.
            Unsupported: the server lacks commands that the filter needs.

        Example:
            >>> news = await AsyncUriFilter.create("more", capacity=10_000_000, error_rate=1e-6)
            >>> news.config.shards, news.config.segments
            (1, 3)
        """
        near = NearCacheSettings(near_cache, near_cache_seconds)
        flow = functools.partial(lifecycle.create, settings=Settings(**settings), large=large, items=items)
        where = name, archive, redis, prefix, timeouts, connections, wait_replicas, reads, rotate, near
        return cls._begin(flow, ClientOptions(*where, coalesce=coalesce))

    @classmethod
    def open(  # noqa: PLR0913 - where the filter is
        cls,
        name: str,
        *,
        archive: str | None = None,
        redis: str | redis_asyncio.Redis | redis_asyncio.RedisCluster | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeouts: Timeouts | None = None,
        connections: int | None = None,
        wait_replicas: int = 0,
        reads: str = READS[0],
        rotate: str | None = None,
        near_cache: int = 0,
        near_cache_seconds: float = SECONDS,
        coalesce: bool = True,
    ) -> Opening[Self]:
        """Open a filter that exists in Redis or its archive; ``create`` describes the arguments.

        The filter is restored from the archive if Redis came back empty, in an older state, or without some slices.

        Raises:
            FilterNotFound: there is no filter of this name.
            ConfigMismatch: the archive has another filter of this name, or the filter was made without an archive.
            ArchiveMissing: there is no filter, but this user has opened one with an archive; the message names it.
            UriFilterError: any other that ``create`` raises.

        Example:
            >>> await AsyncUriFilter.open("nothing")
            Traceback (most recent call last):
            urifilter_redis.errors.FilterNotFound: ...
        """
        near = NearCacheSettings(near_cache, near_cache_seconds)
        where = name, archive, redis, prefix, timeouts, connections, wait_replicas, reads, rotate, near
        return cls._begin(lifecycle.open_, ClientOptions(*where, coalesce=coalesce))

    async def insert(self, uri: object, *, max_age: int | None = None, retry: UriFilterError | None = None) -> bool:
        """Insert an item; return whether it is new.

        True is answered exactly once for an item, over all processes.

        Args:
            uri: a str, bytes or any JSON value.
            max_age: ring: an item that was seen only in slices older than this counts as new; None: any age is seen.
            retry: the error that this method, or another one that inserts, raised for the same item; its answer is
                asked for again.

        Raises:
            BadItem: the item cannot be filtered.
            ValueError: this filter takes no such ``max_age``, or ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out, and the item may have been inserted: pass the error as ``retry=``.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.insert("https://example.com/a")
            True
            >>> await news.insert("https://example.com/a")
            False
        """
        return await self._ask_singly(INSERT, uri, max_age, retry)

    async def insert_many(
        self,
        uris: Iterable[Any],
        *,
        max_age: int | None = None,
        retry: UriFilterError | None = None,
        key: Key = None,
        call_key: str | None = None,
    ) -> list[bool]:
        """Insert items; return whether each is new.

        True is answered exactly once for an item, over all processes. An item that is given twice is new once.

        Args:
            uris: any number of items; all are checked before any is sent. A column of Arrow, NumPy or pandas counts
                as the list of its values.
            max_age: ring: an item that was seen only in slices older than this counts as new; None: any age is seen.
            retry: the error that this method, or another one that inserts, raised for the same items; only items
                without an answer are asked again.
            key: makes an item of each of the caller's objects; None: the objects are the items.
            call_key: a text that names this call for every process: one that repeats it, with the same items in their
                order, gets the same answers, for eight minutes after it was first made; later the call may count as
                another one, to which the items are "seen". None: only this object can repeat the call, by ``retry=``.

        Returns:
            One bool an item, in the order of the items: True if it is new.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was inserted.
            TypeError: one string was given instead of a list.
            ValueError: this filter takes no such ``max_age``, or ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> await news.insert_many(["https://example.com/a", "https://example.com/b", "https://example.com/a"])
            [True, True, False]
        """
        return await self._ask(INSERT_MANY, listed(uris), max_age, retry, key, call_key)

    async def insert_ages(
        self, uris: Iterable[Any], *, max_age: int | None = None, retry: UriFilterError | None = None, key: Key = None
    ) -> list[int]:
        """Insert items; return the age of each.

        Age 0: the item is new. Age n: the item was seen, in the n-th newest slice (rolling: 1 in today, 2 before; ring
        with write all: 1). So 0, which counts as false, is the answer for a new item.

        Args:
            uris: any number of items; see ``insert_many``.
            max_age: ring: an item that was seen only in slices older than this counts as new; None: any age is seen.
            retry: the error that this method, or another one that inserts, raised for the same items; only items
                without an answer are asked again.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            One age an item, in the order of the items.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was inserted.
            TypeError: one string was given instead of a list.
            ValueError: this filter takes no such ``max_age``, or ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out; ``answers`` has the ages that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> await news.insert_ages(["https://example.com/a", "https://example.com/b", "https://example.com/a"])
            [0, 0, 1]
        """
        return await self._ask(INSERT_AGES, listed(uris), max_age, retry, key)

    async def unique(
        self,
        uris: Iterable[T],
        *,
        max_age: int | None = None,
        retry: UriFilterError | None = None,
        key: Callable[[T], object] | None = None,
    ) -> list[T]:
        """Insert items; return those that are new, in their order.

        Args:
            uris: any number of items; see ``insert_many``.
            max_age: ring: an item that was seen only in slices older than this counts as new; None: any age is seen.
            retry: the error that this method, or another one that inserts, raised for the same items; only items
                without an answer are asked again.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            The caller's own objects.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was inserted.
            TypeError: one string was given instead of a list.
            ValueError: this filter takes no such ``max_age``, or ``retry`` is the error of another call.
            FilterFull: growing: the filter has the most slices that it can have.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> await news.unique(["https://example.com/a", "https://example.com/b", "https://example.com/a"])
            ['https://example.com/a', 'https://example.com/b']
            >>> pages = [{"url": "https://example.com/c", "depth": 1}, {"url": "https://example.com/c", "depth": 2}]
            >>> await news.unique(pages, key=lambda page: page["url"])
            [{'url': 'https://example.com/c', 'depth': 1}]
        """
        return await self._ask(UNIQUE, listed(uris), max_age, retry, key)

    async def __call__(
        self, uris: Iterable[T], *, max_age: int | None = None, key: Callable[[T], object] | None = None
    ) -> list[T]:
        """Do as ``unique``.

        Example:
            >>> await news(["https://example.com/a"])
            ['https://example.com/a']
        """
        return await self.unique(uris, max_age=max_age, key=key)

    async def iter_unique(
        self,
        uris: Iterable[T] | AsyncIterable[T],
        *,
        max_age: int | None = None,
        key: Callable[[T], object] | None = None,
    ) -> AsyncIterator[T]:
        """Yield the new items of a stream of any length, in their order; memory is bounded.

        Items are inserted in windows of some thousand. If the loop ends early, the new items that were inserted and not
        yielded are forgotten again. If an error ends a window, the items that are known to be new are yielded first.
        The ``items`` of the error are those of the window: pass both to ``unique``, the error as ``retry=``.
        Nothing is stripped: a line of an open file is an item with its newline, unless ``key`` takes that off.

        Args:
            uris: the stream, which may be asynchronous.
            max_age: ring: an item that was seen only in slices older than this counts as new; None: any age is seen.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Raises:
            BadItem: some items of a window cannot be filtered; nothing of the window was inserted.
            ValueError: this filter takes no such ``max_age``.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> lines = (f"https://example.com/{n % 3}" for n in range(9))
            >>> [item async for item in news.iter_unique(lines)]
            ['https://example.com/0', 'https://example.com/1', 'https://example.com/2']
        """
        async for window in windows(uris):
            asker = self._session.ids.client
            left: Iterator[tuple[Any, bytes]] = iter(())
            failed: UriFilterError | None = None
            try:
                left, failed = await self._insert_window(window, max_age, key)
                for item, _ in left:
                    yield item
            except BaseException:
                if self._session.ids.client != asker:
                    raise  # what ends is a forked child's copy of the loop: its parent goes on with the items
                if failed is None:
                    await self._give_back(left)
                else:  # the loop has ended with another error, so only ``unresolved`` can tell of this one
                    self._session.pending.keep(failed.batch)
                raise
            if failed is not None:
                raise failed

    async def _insert_window(
        self, window: Sequence[T], max_age: int | None, key: Key
    ) -> tuple[Iterator[tuple[T, bytes]], UriFilterError | None]:
        """Insert items; return the known new ones with their digests, and the error that left others without answer."""
        self._check_open()
        batch = items.question(self._session, UNIQUE, window, max_age, key=key)
        self._session.pending.begin(batch)
        try:
            failed = None
            try:
                await self._drive(items.resolve(self._session, batch))
            except UriFilterError as error:
                failed = error
            return self._session.pending.answered(batch, (iter(items.new_pairs(batch)), failed))
        except BaseException as error:
            self._session.pending.failed(batch, error)
            raise

    async def _give_back(self, left: Iterator[tuple[Any, bytes]]) -> None:
        """Forget new items that were not yielded, also in a filter that was closed: a generator may end later.

        If it fails, ``unresolved`` tells of it, because nobody sees an error of a generator that ends.
        """
        batch = items.give_back(self._session, list(left))
        self._session.pending.begin(batch)
        try:
            await self._finish(lambda: items.resolve(self._session, batch))
        finally:
            if None in batch.answers:
                self._session.pending.keep(batch)
            else:
                self._session.pending.answered(batch, None)
            if self._closed:
                await self._connector.close()

    async def contains(self, uri: object, *, max_age: int | None = None) -> bool:
        """Whether an item was seen; nothing is inserted.

        Args:
            uri: a str, bytes or any JSON value.
            max_age: ring: look only at so many of the newest slices; None: at all.

        Raises:
            BadItem: the item cannot be filtered.
            ValueError: this filter takes no such ``max_age``.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.contains("https://example.com/a")
            False
        """
        return await self._ask_singly(CONTAINS, uri, max_age)

    async def contains_many(self, uris: Iterable[Any], *, max_age: int | None = None, key: Key = None) -> list[bool]:
        """Return whether each item was seen; nothing is inserted.

        Args:
            uris: any number of items; see ``insert_many``.
            max_age: ring: look only at so many of the newest slices; None: at all.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            One bool an item, in the order of the items: True if it was seen.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices.
            TypeError: one string was given instead of a list.
            ValueError: this filter takes no such ``max_age``.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.insert("https://example.com/a")
            True
            >>> await news.contains_many(["https://example.com/a", "https://example.com/b"])
            [True, False]
        """
        return await self._ask(CONTAINS_MANY, listed(uris), max_age, None, key)

    async def ages(self, uris: Iterable[Any], *, max_age: int | None = None, key: Key = None) -> list[int]:
        """Return the age of each item without inserting: 0 for not seen, else as ``insert_ages``.

        Args:
            uris: any number of items; see ``insert_many``.
            max_age: ring: look only at so many of the newest slices; None: at all.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Returns:
            One age an item, in the order of the items.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices.
            TypeError: one string was given instead of a list.
            ValueError: this filter takes no such ``max_age``.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.insert("https://example.com/a")
            True
            >>> await news.ages(["https://example.com/a", "https://example.com/b"])
            [1, 0]
        """
        return await self._ask(AGES, listed(uris), max_age, None, key)

    async def forget(self, uris: Iterable[Any], *, retry: UriFilterError | None = None, key: Key = None) -> list[bool]:
        """Make items new again; return whether each was there.

        Args:
            uris: any number of items.
            retry: the error that this method raised for the same items; only items without an answer are asked again.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was forgotten.
            TypeError: one string was given instead of a list.
            ValueError: ``retry`` is the error of another call.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> await news.insert("https://example.com/a")
            True
            >>> await news.forget(["https://example.com/a", "https://example.com/b"])
            [True, False]
            >>> await news.insert("https://example.com/a")
            True
        """
        return await self._ask(FORGET, listed(uris), None, retry, key)

    async def remove(self, uris: Iterable[Any], *, retry: UriFilterError | None = None, key: Key = None) -> list[bool]:
        """Take items out again, layout counting only; return whether each was there.

        Remove only items that certainly were inserted. The filter notices most others. Removing an unnoticed one makes
        other items new again. ``forget`` is safe for all items.

        Args:
            uris: any number of items.
            retry: the error that this method raised for the same items; only items without an answer are asked again.
            key: makes an item of each of the caller's objects; None: the objects are the items.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was removed.
            TypeError: one string was given instead of a list.
            ValueError: the layout is not ``counting``, or ``retry`` is the error of another call.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> await counted.insert("https://example.com/a")
            True
            >>> await counted.remove(["https://example.com/a"])
            [True]
        """
        return await self._ask(REMOVE, listed(uris), None, retry, key)

    def claims(
        self,
        lease: float | None = None,
        name: str | None = None,
        *,
        holder: str | None = None,
        beats: bool = True,
        pauses: bool = True,
    ) -> AsyncClaims:
        """Return an object that claims items: their "new" is final only once they are committed.

        Args:
            lease: seconds for which items stay in flight without a sign of life, 5 to 3600; None: 60 up to 64 shards,
                and above a second for each shard, at most 600.
            name: a name for display; two objects of one name are two holders.
            holder: 16 hex digits: go on as this holder, for calls by hand and from a shell; None: draw one.
            beats: whether to beat in the background, and to give back what is left at the end. Without, each call of
                the object is a beat, unless there was one within a third of the lease, the items lapse two thirds of a
                lease to a lease after the last one, and the caller beats (see ``beat``); and each ``reclaim`` asks the
                server.
            pauses: whether a ``reclaim`` that finds nothing is followed by a pause; False: each one asks the server.

        Raises:
            ValueError: the lease or the holder is impossible.

        Example:
            >>> async with news.claims(lease=60) as mine:
            ...     print(await mine.claim("https://example.com/a"))
            True
        """
        self._check_open()
        check_flag("pauses", pauses)
        backend = RedisClaims(self._session, lease, holder, pauses=beats and pauses, gives_back=beats)
        made = AsyncClaims(backend, self._run, self._beat, name=name, beats=beats)
        self._claimed.add(made)
        return made

    async def commit(self, uris: Iterable[Any], *, key: Key = None) -> list[bool]:
        """Make items final that anybody has in flight; return whether this call did it. See ``commit`` of claims.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was committed.
            TypeError: one string was given instead of a list.
            FilterFull: growing: the filter has the most slices that it can have.
            UriFilterError: any other of the tree in ``errors``, with the ``answers`` that arrived. The call may be
                repeated: an item that it committed is answered False then.

        Example:
            >>> await news.commit(["https://example.com/a"])
            [True]
        """
        flow = claims.finish(self._session, COMMIT, listed(uris), Committing(NO_HOLDER), key)
        return await self._run(flow)

    async def release(
        self, uris: Iterable[Any], *, delay: float = 0, failed: bool = False, key: Key = None
    ) -> list[bool]:
        """Give back items that anybody has in flight; return whether somebody had each. See ``release`` of claims.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was released.
            TypeError: one string was given instead of a list.
            ValueError: the delay is not 0 to 604,800 seconds (7 days).
            UriFilterError: any other of the tree in ``errors``, with the ``answers`` that arrived. The call may be
                repeated.

        Example:
            >>> await news.release(["https://example.com/a"], delay=30)
            [False]
        """
        claim_options = claims.options_of_release(NO_HOLDER, delay, failed=failed)
        return await self._run(claims.finish(self._session, RELEASE, listed(uris), claim_options, key))

    async def in_flight(self, limit: int = 100) -> list[InFlight]:
        """Return items that somebody has in flight, with their holders and counts; in no order.

        Items that were released are not among them until somebody reclaims them.

        Args:
            limit: the most items.

        Raises:
            ValueError: the limit is no number of items.
            SliceLost: an entry cannot be read.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.in_flight()
            []
        """
        check_limit(limit)
        found, _ = await self._run(dead_letters.in_flight_page(self._session, limit))
        return found

    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Return dead letters, the latest first; see ``reject`` of claims.

        Args:
            limit: the most items.

        Raises:
            ValueError: the limit is no number of items.
            SliceLost: a dead letter cannot be read.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.dead_letters()
            []
        """
        check_limit(limit)
        found, _ = await self._run(dead_letters.dead_letters_page(self._session, limit))
        return found

    async def retry_dead_letters(
        self, uris: Iterable[Any] | None = None, *, key: Key = None, retry: UriFilterError | None = None
    ) -> int:
        """Offer dead letters once more, by ``reclaim``, without failures and lapses; return how many.

        Args:
            uris: any number of items; those that are no dead letters stay as they are. None: all dead letters.
            key: makes an item of each of the caller's objects; None: the objects are the items.
            retry: the error that this method raised for the same items; only items without an answer are asked again.

        Raises:
            BadItem: some items cannot be filtered; the error has their indices; nothing was done.
            TypeError: one string was given instead of a list.
            ValueError: ``retry`` is the error of another call.
            AnswerLost: the retries ran out; ``answers`` has the answers that arrived, ``retry=`` asks for the others.
            UriFilterError: any other of the tree in ``errors``, likewise with ``answers``.

        Example:
            >>> await news.retry_dead_letters()
            0
        """
        items = None if uris is None else listed(uris)
        return (await self._run(dead_letters.retry(self._session, items, key, retry))).count(1)

    async def beat(self, holder: str, lease: float | None = None) -> int:
        """Give a sign of life for a holder that has no object here; return how many items it has in flight.

        Args:
            holder: 16 hex digits, as the ``holder`` of claims.
            lease: seconds for which its items stay in flight from now, 5 to 3600; None: as ``claims`` has it.

        Raises:
            ValueError: the holder or the lease is impossible.
            UriFilterError: any of the tree in ``errors``.

        Example:
            >>> await news.beat("0123456789abcdef", lease=60)
            0
        """
        return await self._run(reclaim.beat_all(self._session, claims.holding_of(self._session, holder, lease)))

    async def checkpoint_age(self) -> float:
        """Return the seconds since the last checkpoint of any shard began; infinity without a known one.

        Raises:
            UriFilterError: any of the tree in ``errors``.

        Example:
            >>> await news.checkpoint_age()
            inf
        """
        return await self._run(checkpoint_age(self._session))

    async def rotate(self, expected_epoch: int | None = None, *, dry_run: bool = False) -> Rotation:
        """Rotate a ring or rolling filter once, and finish a rotation that was left unfinished.

        Args:
            expected_epoch: rotate only if the filter is in this epoch, so that one of many processes rotates; None:
                rotate in any case.
            dry_run: change nothing; return the epoch that would be reached.

        Raises:
            RotationConflict: the filter is in another epoch than ``expected_epoch``.
            ArchiveError: rolling: the archive is away or damaged.
            UriFilterError: the retention does not rotate by time; any other of the tree in ``errors``.

        Example:
            >>> (await daily.rotate(expected_epoch=0)).epoch
            1
        """
        return await self._run(rotation.rotate(self._session, expected_epoch, dry_run=dry_run))

    async def due(self) -> int | None:
        """Return the epoch that ``rotate_due`` would reach; None if nothing is due.

        Raises:
            UriFilterError: the retention does not rotate by time; any other of the tree in ``errors``.

        Example:
            >>> await daily.due() is None
            True
        """
        return await self._run(rotation.due(self._session))

    async def epoch(self) -> int:
        """Return the number of rotations so far (growing: of slices that were added).

        Raises:
            UriFilterError: any of the tree in ``errors``.

        Example:
            >>> await daily.epoch()
            0
        """
        return await self._run(rotation.epoch(self._session))

    async def next_rotation(self) -> float:
        """Return the time at which a rotation is due, in seconds since 1970, server time.

        Raises:
            UriFilterError: the retention does not rotate by time; any other of the tree in ``errors``.

        Example:
            >>> await daily.next_rotation() > time.time()
            True
        """
        return await self._run(rotation.next_rotation(self._session))

    async def rotate_due(self) -> Rotation | None:
        """Rotate if a period is over or a rotation was left unfinished; return None if not.

        Raises:
            ArchiveError: rolling: the archive is away or damaged.
            UriFilterError: the retention does not rotate by time; any other of the tree in ``errors``.

        Example:
            >>> await daily.rotate_due() is None
            True
        """
        return await self._run(rotation.rotate_due(self._session))

    async def checkpoint(self, *, full: bool = False) -> Written:
        """Write all changes since the last checkpoint to the archive; inserts go on meanwhile.

        Args:
            full: write all shards, also unchanged ones; for an archive that was damaged.

        Raises:
            ArchiveMissing: the filter has no archive, or the archive was not named.
            ArchiveError: the archive failed; the last checkpoint is still there.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> (await archived.checkpoint()).shards
            1
        """
        return await self._run(checkpoint(self._session, full=full))

    async def acknowledge(self) -> int:
        """Note that you know of what restores may have lost; until then doctor, ``info``, page and metrics tell it.

        Returns:
            The number of shards whose restore was not acknowledged yet.

        Raises:
            UriFilterError: any of the tree in ``errors``.

        Example:
            >>> await archived.acknowledge()
            0
        """
        return await self._run(acknowledge(self._session))

    async def union(self, *sources: str, over_capacity: bool = False) -> int:
        """Insert all items that other filters have seen, on this server and of equal geometry, hash and seed.

        Args:
            sources: the names of the other filters; ``create(name, **news.settings)`` makes such a filter.
            over_capacity: merge them even if the result is over capacity, or wrong more often than was asked for.

        Returns:
            The approximate number of items that were added.

        Raises:
            OverCapacity: the result would be over capacity; the error has its error rate, and nothing was merged.
            FilterNotFound: this filter, or a source, does not exist.
            ConfigMismatch: a source has another geometry, hash or seed; the error names each difference.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.union("old news")
            Traceback (most recent call last):
            ValueError: a filter's name is 1 to 64 of A-Z a-z 0-9 . _ - and not 'old news'
        """
        return await self._run(union(self._session, sources, over_capacity=over_capacity))

    async def info(self) -> FilterInfo:
        """Return configuration and state.

        All bits are counted, so the call costs the server some ms for every 16 MiB.

        Raises:
            UriFilterError: any of the tree in ``errors``.

        Example:
            >>> (await news.info()).capacity
            1000
        """
        told = await self._run(info(self._session))
        if told.claims is not None:
            self._tell_claims(told.claims.in_flight + told.claims.lapsed + told.claims.delayed)
        return told

    async def inserted(self) -> int:
        """Return how many items were answered "new" and have not expired; cheap, unlike ``info``.

        Raises:
            UriFilterError: any of the tree in ``errors``.

        Example:
            >>> await news.inserted()
            0
        """
        return await self._run(inserted(self._session))

    async def drop(self, *, keep_archive: bool = False) -> None:
        """Remove the filter with all its items, and its archive unless ``keep_archive``.

        Args:
            keep_archive: keep the filter in its archive, so that it can be restored.

        Raises:
            ConfigMismatch: the filter was dropped and created anew by another process.
            ArchiveMissing: the filter has an archive, and the caller has not named it.
            UriFilterError: any other of the tree in ``errors``.

        Example:
            >>> await news.drop()
            >>> await news.insert("https://example.com/a")
            Traceback (most recent call last):
            urifilter_redis.errors.FilterNotFound: ...
        """
        await self._run(dropping.drop(self._session, keep_archive=keep_archive))

    async def close(self) -> None:
        """Close the connections; the filter stays on the server.

        If this client has inserted and a period is over, it goes on with the rotation before, for a second at most.

        Example:
            >>> await news.close()
        """
        await self._end()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
