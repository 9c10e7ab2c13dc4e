"""The link of a crawl to its filter: two clients, and what is done while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import secrets
import time
from typing import TYPE_CHECKING

from urifilter_redis.aio import AsyncUriFilter
from urifilter_redis.client import UriFilter
from urifilter_redis.errors import AnswerLost, FilterNotFound, Restoring, ServerUnavailable, UriFilterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from scrapy.statscollectors import StatsCollector

    from urifilter_redis.scrapy.options import Options

__all__ = ["Answer", "Link"]

logger = logging.getLogger(__name__)

#: Seconds between two looks whether Redis is back, or the spider closes.
PAUSE = 0.25

#: Seconds after which the server may have removed the record of a call, so that its answer cannot be had any more.
RECORDED = 600


class Answer(enum.Enum):
    """The answer about a request.

    Attributes:
        NEW: the filter says "new" and has the item from now on.
        SEEN: the filter says "seen".
        ASK: the filter was not asked. It has to be asked before the download.
        DOUBT: the filter may have inserted the item, and the answer did not arrive. This link can ask for it again.
        PASS: the filter was not asked, and the request goes on (``URIFILTER_ON_ERROR = "pass"``).
    """

    NEW = "new"
    SEEN = "seen"
    ASK = "ask"
    DOUBT = "doubt"
    PASS = "pass"  # noqa: S105 - no password


#: The errors of a server that will be back.
_AWAY = (ServerUnavailable, Restoring)


class Link:
    """Asks the filter: for batches by an asyncio client, and for single requests by a blocking one.

    Only the asyncio client forgets items and has a near cache, so that the cache hears of everything that this process
    forgets.

    Args:
        options: the crawl's settings.
        stats: the crawl's stats.
        closing: says whether the spider is closing.
        close_spider: closes the spider, given a reason.
    """

    def __init__(
        self,
        options: Options,
        stats: StatsCollector,
        closing: Callable[[], bool],
        close_spider: Callable[[str], object],
    ) -> None:
        self._options, self._stats = options, stats
        self._closing, self._close_spider = closing, close_spider
        self._asynchronous: AsyncUriFilter | None = None
        self._blocking: UriFilter | None = None
        self._opening = asyncio.Lock()
        self._left: list[AsyncUriFilter | None] = []
        #: The items that the filter may have, by the error that came in place of the answer.
        self.doubts: dict[str | bytes, UriFilterError] = {}
        self._watch: asyncio.Task[None] | None = None
        self._last = False
        #: Distinguishes this crawl's doubts from those in a queue that another process has left.
        self.id = secrets.token_hex(8)

    @property
    def away(self) -> bool:
        """Whether Redis is away, as far as this crawl knows."""
        return self._watch is not None

    async def open(self) -> None:
        """Open both clients. If Redis is away, the crawl begins without, unless ``URIFILTER_ON_ERROR`` is ``close``.

        Raises:
            UriFilterError: the filter cannot be opened.
        """
        if self.away:
            return
        try:
            await self._opened()
            await asyncio.to_thread(self._opened_now)
        except _AWAY as error:
            if self._options.on_error == "close":
                raise
            self._note(error)

    async def insert(self, items: Sequence[str | bytes]) -> list[Answer]:
        """Insert items; return an answer each. While Redis is away, wait or not as ``URIFILTER_ON_ERROR`` says."""
        told = {item: await self._resolve(item) for item in set(items) & self.doubts.keys()}
        asked = [item for item in items if item not in told]
        if not asked:  # an item that is there twice is new once
            return [told.pop(item, Answer.SEEN) for item in items]
        answers, error = await self._call(functools.partial(self._insert_many, asked), len(asked))
        self._stats.inc_value("urifilter/calls")
        rest = iter([self._settled(each, error) for each in answers])
        resolved = set(told)
        return [told.pop(item, Answer.SEEN) if item in resolved else next(rest) for item in items]

    def insert_now(self, item: str | bytes) -> Answer:
        """Insert an item and wait for the answer. While Redis is away, the answer is neither NEW nor SEEN."""
        if self.away or item in self.doubts:
            return self._unasked
        try:
            is_new = self._opened_now().insert(item)
        except UriFilterError as error:
            self._note(error)
            if not isinstance(error, AnswerLost) or self._options.on_error == "pass":
                return self._unasked
            self.doubts[item] = error
            return Answer.DOUBT
        self._stats.inc_value("urifilter/calls")
        return Answer.NEW if is_new else Answer.SEEN

    async def forget(self, items: Sequence[str | bytes]) -> bool:
        """Make items new again; return whether the filter did."""
        _, error = await self._call(functools.partial(self._forget, items), len(items))
        return error is None

    def drop(self) -> None:
        """Remove the filter; the next call makes it anew.

        Raises:
            UriFilterError: the server is away.
        """
        self._opened_now().drop()
        self._opened_now().close()
        self._left.append(self._asynchronous)
        self._blocking = self._asynchronous = None

    def last_calls(self) -> None:
        """Let calls be made from now on even if Redis was away, once each: the crawl is over."""
        self._last = True

    async def close(self) -> None:
        """Close both clients."""
        if self._watch is not None:
            self._watch.cancel()
        for each in (*self._left, self._asynchronous):
            if each is not None:
                await each.close()
        if self._blocking is not None:
            await asyncio.to_thread(self._blocking.close)

    async def _insert_many(self, items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
        return await (await self._opened()).insert_many(items, retry=lost)

    async def _forget(self, items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
        return await (await self._opened()).forget(items, retry=lost)

    async def _resolve(self, item: str | bytes) -> Answer:
        """Ask again for the answer that the blocking client has lost."""

        async def ask(lost: UriFilterError | None) -> list[bool]:
            return [await asyncio.to_thread(self._opened_now().insert, item, retry=lost)]

        doubt = self.doubts.pop(item)
        (answer,), error = await self._call(ask, 1, doubt)
        return self._settled(answer, error)

    async def _call(
        self,
        ask: Callable[[UriFilterError | None], Awaitable[list[bool]]],
        count: int,
        lost: UriFilterError | None = None,
    ) -> tuple[Sequence[int | None], UriFilterError | None]:
        """Call until the answers are there; return them, and the error if some are not."""
        began = time.monotonic()
        while True:
            if not self.away or self._last:
                try:
                    return await ask(lost), None
                except UriFilterError as error:
                    self._note(error)
                    lost = error if error.batch is not None or lost is None else lost
                    hopeless = isinstance(error, AnswerLost) and time.monotonic() > began + RECORDED
                    if hopeless or not isinstance(error, _AWAY):
                        break
            if self._last or self._options.on_error != "pause" or self._closing():
                break
            await asyncio.sleep(PAUSE)
        answers = lost.answers if lost is not None else None
        return (answers or [None] * count), lost

    @property
    def _unasked(self) -> Answer:
        return Answer.PASS if self._options.on_error == "pass" else Answer.ASK

    def _settled(self, answer: int | None, error: UriFilterError | None) -> Answer:
        """Return the answer that ends a call. If it is lost for good the item counts as new, so that it is not lost."""
        if answer is None and isinstance(error, AnswerLost):
            return Answer.NEW
        if answer is None:
            return self._unasked
        return Answer.NEW if answer else Answer.SEEN

    def _note(self, error: UriFilterError) -> None:
        """Note that a call failed: Redis is away, or the filter cannot be used."""
        self._stats.inc_value("urifilter/errors")
        if not isinstance(error, _AWAY):
            logger.error("The filter cannot be used: %s", error)
            if self._options.on_error != "pass":
                self._close_spider("urifilter_error")
        elif not self.away and not self._last:
            self._watch = asyncio.ensure_future(self._watch_for_return())
            then = {
                "pause": "requests wait until it is back",
                "pass": "requests go on without being asked about",
                "close": "the spider closes",
            }
            logger.warning("%s; %s (URIFILTER_ON_ERROR)", error, then[self._options.on_error])
            if self._options.on_error == "close":
                self._close_spider("urifilter_unavailable")

    async def _watch_for_return(self) -> None:
        """Wait until the server answers again."""
        began = time.monotonic()
        while True:
            try:
                await (await self._opened()).inserted()
                await asyncio.to_thread(self._opened_now)  # so that the reactor need not wait for it
            except _AWAY:
                await asyncio.sleep(PAUSE)
            except UriFilterError:
                break  # the server answers, and the next call says so to the crawl
            else:
                break
        self._watch = None
        self._stats.inc_value("urifilter/seconds_away", round(time.monotonic() - began))
        logger.info("Redis is back")

    async def _opened(self) -> AsyncUriFilter:
        async with self._opening:
            if self._asynchronous is None:
                self._asynchronous = await self._open_or_create()
            return self._asynchronous

    async def _open_or_create(self) -> AsyncUriFilter:
        options = self._options
        where = options.where | options.cache
        if not options.filter:
            with contextlib.suppress(FilterNotFound):
                return await AsyncUriFilter.open(options.name, **where)
        return await AsyncUriFilter.create(options.name, **where, **options.to_make)

    def _opened_now(self) -> UriFilter:
        options = self._options
        if self._blocking is None and not options.filter:
            with contextlib.suppress(FilterNotFound):
                self._blocking = UriFilter.open(options.name, **options.where)
        if self._blocking is None:
            self._blocking = UriFilter.create(options.name, **options.where, **options.to_make)
        return self._blocking
