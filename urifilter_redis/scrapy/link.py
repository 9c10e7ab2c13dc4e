"""The link of a crawl to its filter: its questions, and what is done while Redis is away."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import secrets
import time
from typing import TYPE_CHECKING, TypeVar

from urifilter_redis.errors import AnswerLost, Restoring, ServerUnavailable, UriFilterError
from urifilter_redis.protocol.outcomes import needs_mending
from urifilter_redis.scrapy.clients import Clients

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from scrapy.statscollectors import StatsCollector

    from urifilter_redis.engine.holdings import Claim, Outstanding
    from urifilter_redis.scrapy.clients import Step
    from urifilter_redis.scrapy.ending import Ending
    from urifilter_redis.scrapy.options import Options

__all__ = ["Answer", "Link"]

T = TypeVar("T")

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
        AGAIN: the filter says "seen", and the page is fetched all the same.
        ASK: the filter was not asked. It has to be asked before the download.
        DOUBT: the filter may have inserted the item, and the answer did not arrive. This link can ask for it again.
        PASS: the filter was not asked, and the request goes on (``URIFILTER_ON_ERROR = "pass"``).
    """

    NEW = "new"
    SEEN = "seen"
    AGAIN = "again"
    ASK = "ask"
    DOUBT = "doubt"
    PASS = "pass"  # noqa: S105 - no password


def _is_away(error: UriFilterError) -> bool:
    """Whether an error is that of a server that will be back; one that refuses the password would refuse for ever."""
    return isinstance(error, ServerUnavailable | Restoring) and not needs_mending(error)


class Link:
    """Asks the filter, and waits for it while Redis is away.

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
        self.clients = Clients(options)
        #: The items that the filter may have, by the error that came in place of the answer.
        self.doubts: dict[str | bytes, UriFilterError] = {}
        #: The items that went on without a question ("pass"): once each, until the filter says something about them.
        self.passed: dict[str | bytes, None] = {}
        self._watch: asyncio.Task[None] | None = None
        self._last = False
        #: Distinguishes this crawl's doubts from those in a queue that another process has left.
        self.id = secrets.token_hex(8)

    @property
    def waits(self) -> bool:
        """Whether the crawl waits for Redis while it is away."""
        return self._options.on_error == "pause"

    @property
    def left_behind(self) -> str:
        """The message about items whose ending the filter did not hear of, with a place for their number."""
        if self._options.claiming is None:
            return "%d addresses were not fetched and stay seen, because Redis is away"
        return "the ends of %d pages could not be told, because Redis is away: they may be fetched again"

    @property
    def away(self) -> bool:
        """Whether Redis is away, as far as this crawl knows."""
        return self._watch is not None

    async def open(self) -> None:
        """Open both clients. If Redis is away, the crawl begins without, unless ``URIFILTER_ON_ERROR`` is ``close``.

        Raises:
            UriFilterError: the filter cannot be opened.
            ValueError: a setting that says where the filter is, or how it is kept, is not possible.
        """
        if self.away:
            return
        try:
            await self.clients.opened()
            await asyncio.to_thread(self.clients.opened_now)
        except ValueError as error:
            raise ValueError(f"{self._options.named}: {error}") from None
        except UriFilterError as error:
            if self._options.on_error == "close" or not _is_away(error):
                raise
            self._note(error)

    async def ask(self, items: Sequence[str | bytes], payloads: Mapping[str | bytes, str | None]) -> list[Answer]:
        """Insert or claim items; return an answer each. While Redis is away, wait as ``URIFILTER_ON_ERROR`` says."""
        told = {item: await self._resolve(item, payloads.get(item)) for item in set(items) & self.doubts.keys()}
        known = told.keys() | (set() if self._last else self.passed.keys() & set(items))
        asked = [item for item in items if item not in known]
        if not asked:  # an item that is there twice is new once
            return [told.pop(item, Answer.SEEN) for item in items]
        answers, error = await self._call(functools.partial(self.clients.ask, payloads, asked), len(asked))
        self._stats.inc_value("urifilter/calls")
        rest = iter([self._settled(item, each, error) for item, each in zip(asked, answers, strict=True)])
        return [told.pop(item, Answer.SEEN) if item in known else next(rest) for item in items]

    def ask_now(self, item: str | bytes, payload: str | None) -> Answer:
        """Insert or claim an item and wait for the answer. While Redis is away, the answer is neither NEW nor SEEN."""
        if self.away or item in self.doubts or item in self.passed:
            return self._unasked(item)
        try:
            is_new = self.clients.ask_now(item, payload)
        except UriFilterError as error:
            self._note(error)
            if not isinstance(error, AnswerLost) or self._options.on_error == "pass":
                return self._unasked(item)
            self.doubts[item] = error
            return Answer.DOUBT
        self._stats.inc_value("urifilter/calls")
        return Answer.NEW if is_new else Answer.SEEN

    async def end(self, ending: Ending, items: Sequence[str | bytes]) -> bool:
        """End items; return whether the filter knows."""
        for count, step in self.clients.steps(ending, items):
            answers, error = await self._call(step, count)
            if error is not None or None in answers:  # None: nobody was asked, because Redis is away
                return False
        return True

    async def reclaim(self, limit: int) -> list[Claim]:
        """Take in hand what dead crawls had and what is due again; nothing while Redis is away."""
        return await self._look(functools.partial(self.clients.reclaim, limit), [])

    async def outstanding(self) -> Outstanding | None:
        """Return how much other crawls have in hand; None while Redis is away."""
        return await self._look(self.clients.outstanding, None)

    def last_calls(self) -> None:
        """Let calls be made from now on even if Redis was away, once each: the crawl is over."""
        self._last = True

    async def close(self) -> None:
        """Close both clients."""
        if self._watch is not None:
            self._watch.cancel()
        await self.clients.close()

    async def _resolve(self, item: str | bytes, payload: str | None) -> Answer:
        """Ask again for the answer that the blocking client has lost."""

        async def ask(lost: UriFilterError | None) -> list[bool]:
            return [await asyncio.to_thread(self.clients.ask_now, item, payload, lost)]

        doubt = self.doubts.pop(item)
        (answer,), error = await self._call(ask, 1, doubt)
        return self._settled(item, answer, error)

    async def _call(
        self,
        ask: Step,
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
                    if hopeless or not _is_away(error):
                        break
            if self._last or self._options.on_error != "pause" or self._closing():
                break
            await asyncio.sleep(PAUSE)
        answers = lost.answers if lost is not None else None
        return (answers or [None] * count), lost

    async def _look(self, look: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Ask once; while Redis is away the answer is ``otherwise``."""
        if self.away:
            return otherwise
        try:
            return await look()
        except UriFilterError as error:
            self._note(error)
            return otherwise

    def _unasked(self, item: str | bytes) -> Answer:
        if self._options.on_error != "pass":
            return Answer.ASK
        if item in self.passed and not self._last:
            return Answer.SEEN
        self.passed[item] = None
        return Answer.PASS

    def _settled(self, item: str | bytes, answer: int | None, error: UriFilterError | None) -> Answer:
        """Return the answer that ends a call.

        If it is lost for good the item counts as new, so that it is not lost. With claims it was not asked about: what
        the call may have taken in hand is given back by a beat.
        """
        if answer is None and isinstance(error, AnswerLost) and self._options.claiming is None:
            return Answer.NEW
        if answer is None:
            return self._unasked(item)
        return Answer.NEW if answer else Answer.SEEN

    def _note(self, error: UriFilterError) -> None:
        """Note that a call failed: Redis is away, or the filter cannot be used."""
        self._stats.inc_value("urifilter/errors")
        if not _is_away(error):
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
                await (await self.clients.opened()).inserted()
                await asyncio.to_thread(self.clients.opened_now)  # so that the reactor need not wait for it
            except UriFilterError as error:
                if not _is_away(error):
                    break  # the server answers, and the next call says so to the crawl
                await asyncio.sleep(PAUSE)
            else:
                break
        self._watch = None
        self._stats.inc_value("urifilter/seconds_away", round(time.monotonic() - began))
        logger.info("Redis is back")
