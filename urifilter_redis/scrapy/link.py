"""The link of a crawl to its filter: its calls, and what is done while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from urifilter_redis.aio import AsyncUriFilter
from urifilter_redis.bloom.normalize import normalizer
from urifilter_redis.claiming.awaited import AsyncClaims
from urifilter_redis.engine.holdings import Claim, Outstanding
from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.errors import AnswerLost, BadItem, FilterNotFound, Restoring, ServerUnavailable, UriFilterError
from urifilter_redis.protocol.claims import PARKED, InFlight
from urifilter_redis.protocol.config import Settings
from urifilter_redis.protocol.outcomes import needs_mending
from urifilter_redis.scrapy.options import Options

if TYPE_CHECKING:
    from scrapy.statscollectors import StatsCollector

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: A call, given the error of an earlier attempt.
_Step = Callable[[UriFilterError | None], Awaitable[list[bool]]]

#: Makes what the filter keeps of an item in flight; None: the item itself.
_Payload = Callable[["str | bytes"], "str | None"]

#: Seconds between two looks whether Redis is back, or the spider closes.
PAUSE = 0.25

#: Seconds after which the server may have removed the record of a call, so that its answer cannot be had any more.
RECORDED = 600

#: Seconds for which no crawl with claims takes over what is kept for the next crawl of a spider: the longest lease.
LONGEST_LEASE = 3600

#: The most items in flight of which a crawl reads whether they are kept for it.
MOST_READ = 1_000_000

#: Seconds for which nobody gets an item that is released in order to be forgotten.
_HIDDEN = 60

#: What the log says that a crawl does then.
_WHILE_AWAY = {
    "pause": "requests wait until it is back",
    "pass": "requests go on without being asked about",
    "close": "the spider closes",
}


_TOO_LONG = (
    "%.200s... is an item of more than 64 KiB, and cannot be claimed: its request is dropped - no more of these will "
    "be shown (see urifilter/too_long)"
)


class Ending(NamedTuple):
    """One way in which items end.

    Attributes:
        command: ``forget`` makes items new again; ``record`` inserts those of pages that were fetched without a
            question; ``commit``, ``reject`` and ``release`` end claims.
        delay: release: seconds before the items are offered again.
        failed: release: whether a failure of each item is counted.
        reason: reject: the reason.
    """

    command: Literal["forget", "record", "commit", "reject", "release"]
    delay: float = 0
    failed: bool = False
    reason: str = ""


FORGET, RECORD, COMMIT = Ending("forget"), Ending("record"), Ending("commit")


class Answer(enum.Enum):
    """The answer about a request.

    Attributes:
        NEW: the filter says "new" and has the item from now on.
        SEEN: the filter says "seen".
        AGAIN: the filter says "seen", and the page is fetched all the same.
        ASK: the filter was not asked. It has to be asked before the download.
        PASS: the filter was not asked, and the request goes on (``URIFILTER_ON_ERROR = "pass"``).
    """

    NEW = "new"
    SEEN = "seen"
    AGAIN = "again"
    ASK = "ask"
    PASS = "pass"  # noqa: S105 - no password


class Link:
    """Inserts or claims items, as the settings say, and ends them; waits while Redis is away."""

    def __init__(
        self, options: Options, stats: StatsCollector, stopping: Callable[[], bool], close_spider: Callable[[str], Any]
    ) -> None:
        self._options, self._stats, self._stopping, self._close_spider = options, stats, stopping, close_spider
        self._filter: AsyncUriFilter | None = None
        self._mine: AsyncClaims | None = None
        #: Claims by the holders of what waits at a close; see ``Keeping``.
        self._keepers: dict[str, AsyncClaims] = {}
        self._opening = asyncio.Lock()
        #: The items that went on without a question ("pass"): once each, until the filter says something about them.
        self.passed: dict[str | bytes, None] = {}
        #: The items that count as new because the answer was lost: the filter may not have them.
        self.unsure: set[str | bytes] = set()
        #: Held by an end or a reclaim: an item could come back before its release is noted, and would be dropped then.
        self._moving = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._last = False
        #: Whether Redis did not answer a last call: the others would wait as long, one after the other.
        self._gone = False
        #: Whether the filter cannot be used, so that the log has said it.
        self.is_unusable = False

    @property
    def away(self) -> bool:
        """Whether Redis is away, as far as this crawl knows."""
        return self._watch is not None

    @property
    def lease(self) -> float:
        """Seconds for which items stay in flight without a sign of life; 0 without claims."""
        return 0.0 if self._mine is None else self._mine.lease

    @property
    def held(self) -> set[str | bytes]:
        """The items that this process has in flight, as far as it knows, but for those that are of no spider."""
        held = [] if self._mine is None else [claim.item for claim in self._mine.held]
        return {item for item in held if _is_item(item)}

    def claim_of(self, item: str | bytes) -> Claim | None:
        """Return the claim of an item that this process has in flight; None if it has not, as far as it knows."""
        found = [] if self._mine is None else self._mine.claimed([item])
        return found[0] if found else None

    def is_one(self, item: str | bytes, other: str | bytes) -> bool:
        """Whether two items are one for the filter, as far as it was opened: it may normalise addresses."""
        config = None if self._filter is None else self._filter.config
        change = None if config is None else normalizer(config.normalize, config.rules)
        return item == other or (change is not None and change(item) == change(other))

    @property
    def normalizes(self) -> bool:
        """Whether the filter normalises addresses; until it was opened, as the settings say."""
        config = None if self._filter is None else self._filter.config
        made = self._options.filter.get("normalize", "none") if config is None else config.normalize
        return made != "none"

    async def open(self) -> None:
        """Open the filter. If Redis is away, the crawl begins without, unless ``URIFILTER_ON_ERROR`` is ``close``."""
        since = time.monotonic()
        try:
            await self._opened()
        except ValueError as error:
            raise ValueError(f"{self._options.named(error)}: {error}") from None
        except UriFilterError as error:
            if self._options.on_error == "close" or not _is_away(error):
                await self.close()
                self._tell(error)
                # Scrapy logs what is raised, with all that led to it: whose calls were in the way is of no use
                raise error.with_traceback(None) from None
            self._note(error, since)

    async def ask(self, items: Sequence[str | bytes], payload: _Payload) -> list[Answer]:
        """Insert or claim items, each once; return an answer each: ``SEEN`` for those that are too long for a claim.

        ``payload`` makes what the filter keeps of an item that the server is asked to claim. While Redis is away, wait
        as ``URIFILTER_ON_ERROR`` says.
        """
        asked = [item for item in items if self._last or item not in self.passed]
        if not asked:
            return [Answer.SEEN] * len(items)
        answers, error = await self._call_without_bad(functools.partial(self._insert, payload), asked)
        self._stats.inc_value("urifilter/calls")
        found = {item: self._settled(item, each, error) for item, each in answers.items()}
        return [found.get(item, Answer.SEEN) for item in items]

    async def claim(self, payloads: Mapping[str | bytes, str | None]) -> bool:
        """Claim items whatever was passed before, with what the filter keeps of each; return whether it knows."""
        answers, error = await self._call_without_bad(
            functools.partial(self._insert, payloads.__getitem__), list(payloads)
        )
        return error is None and None not in answers.values()

    async def end(self, ending: Ending, items: Sequence[str | bytes]) -> bool:
        """End items; return whether the filter knows.

        A claim that is to be forgotten is released before, and offered to nobody meanwhile.
        """
        release = [Ending("release", _HIDDEN)] if ending.command == "forget" and self._mine is not None else []
        async with self._moving:
            for step in (*release, ending):
                answers, error = await self._call(functools.partial(self._end, step, items), len(items))
                if error is not None or None in answers:  # None: nobody was asked, because Redis is away
                    return False
        return True

    async def reclaim(self, limit: int) -> list[Claim]:
        """Claim what dead crawls had and what is due again; nothing while Redis is away.

        Other items than text and bytes are of no spider, and go back.
        """
        async with self._moving:
            found = await self._look(lambda mine: mine.reclaim(limit)) or []
        others = [] if self._mine is None else [each.item for each in self._mine.held if not _is_item(each.item)]
        if others:  # if it cannot be done now, the next look tries it again
            await self._look(lambda mine: mine.release(others, delay=PARKED))
        return [claim for claim in found if _is_item(claim.item)]

    async def outstanding(self) -> Outstanding | None:
        """Return how much other crawls have in flight; None while Redis is away."""
        return await self._look(lambda mine: mine.outstanding())

    async def keep(self, holder: str, payloads: dict[str | bytes, str]) -> list[bool | None]:
        """Claim items for a holder that no process is; return whether each is kept, None if nobody knows."""

        async def claim(items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
            return await (await self._keeping(holder)).claim_many(items, payload=payloads.__getitem__, retry=lost)

        answers, _ = await self._call_without_bad(claim, list(payloads))
        return [None if (each := answers.get(item)) is None else bool(each) for item in payloads]

    async def kept(self, holder: str) -> list[InFlight] | None:
        """Return what a holder has; None while Redis is away."""
        if self._filter is None:
            return None
        found = await self._once(functools.partial(self._filter.in_flight, MOST_READ))
        return found and [each for each in found if each.holder == holder and _is_item(each.item)]

    async def take(self, holder: str, items: Sequence[str | bytes]) -> list[bool | None]:
        """Commit items of a holder; return whether this call did it: of several crawls one. None: nobody was asked.

        If the answer is lost for good the item was taken, so that it is not lost.
        """

        async def commit(lost: UriFilterError | None) -> list[bool]:
            return await (await self._keeping(holder)).commit(items, retry=lost)

        answers, error = await self._call(commit, len(items))
        unknown = True if isinstance(error, AnswerLost) else None
        return [unknown if each is None else bool(each) for each in answers]

    def last_calls(self) -> None:
        """Let calls be made from now on even if Redis was away, until one fails: the crawl is over."""
        self._last = True

    async def drop(self) -> None:
        """Remove the filter, and make it anew."""
        await self._call(self._drop, 0)

    async def close(self) -> None:
        """Give back what is in flight, and close the filter, which ends the beats, too."""
        if self._watch is not None:
            self._watch.cancel()
        for each in (None if self._gone else self._mine, self._filter):  # to give back would wait as long once more
            if each is not None:
                await each.close()

    async def _opened(self) -> AsyncUriFilter:
        """Return the client; open the filter, or make it, before."""
        options = self._options
        async with self._opening:
            if self._filter is None:
                news = await self._open_or_create()
                options.check(news.config)
                await self._rotate(news)
                self._filter = news
            if self._mine is None and options.claiming is not None:
                self._mine = self._filter.claims(options.claiming.lease, pauses=options.claiming.share is None)
            return self._filter

    async def _keeping(self, holder: str) -> AsyncClaims:
        news = await self._opened()
        if holder not in self._keepers:
            self._keepers[holder] = news.claims(LONGEST_LEASE, holder=holder, beats=False)
        return self._keepers[holder]

    async def _open_or_create(self) -> AsyncUriFilter:
        options = self._options
        where = options.where | options.cache
        if "capacity" not in options.filter:  # that of a filter which exists may be any: an import has chosen it
            with contextlib.suppress(FilterNotFound):
                news = await AsyncUriFilter.open(options.name, **where)
                try:
                    if options.filter:
                        news.config.check(Settings(capacity=news.config.capacity, **options.filter), options.name)
                except BaseException:
                    await news.close()
                    raise
                return news
        return await AsyncUriFilter.create(options.name, **where, **options.to_make)

    async def _drop(self, _: UriFilterError | None) -> list[bool]:
        news = await self._opened()
        async with self._opening:  # what is opened meanwhile could be the old filter
            self._filter, self._keepers = None, {}
            await news.drop()
            await news.close()
        await self._opened()
        return []

    async def _rotate(self, news: AsyncUriFilter) -> None:
        """Finish the rotations that are due, before the first question.

        A call finds expired what a turn has removed. In a rolling filter the rest stays seen until its next history is
        built, and that may take longer than a crawl that finds nothing new.
        """
        if news.config.turned_by_inserts and RotationTimer(self._options.where.get("rotate")).turns:
            try:
                await news.rotate_due()
            except UriFilterError as error:
                logger.warning("Pages that are due again are not fetched yet: %s", error)

    async def _insert(self, payload: _Payload, items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
        news = await self._opened()
        if self._mine is None:
            return await news.insert_many(items, retry=lost)
        return await self._mine.claim_many(items, payload=lambda item: payload(item) or item, retry=lost)

    async def _end(self, ending: Ending, items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
        if ending.command == "record":
            return await self._insert(lambda _: None, items, lost)
        if ending.command == "forget":
            return await (await self._opened()).forget(items, retry=lost)
        assert self._mine is not None  # noqa: S101 - there are claims
        if ending.command == "commit":
            return await self._mine.commit(items, retry=lost)
        if ending.command == "reject":
            return await self._mine.reject(items, ending.reason, retry=lost)
        return await self._mine.release(items, delay=ending.delay, failed=ending.failed, retry=lost)

    async def _call_without_bad(
        self,
        ask: Callable[[Sequence[str | bytes], UriFilterError | None], Awaitable[list[bool]]],
        items: list[str | bytes],
    ) -> tuple[dict[str | bytes, int | None], UriFilterError | None]:
        """Call about items, but for those that cannot be claimed; return the answers to the others, and the error.

        The page of a link that cannot be claimed would otherwise end each crawl that comes upon it.
        """
        try:
            answers, error = await self._call(functools.partial(ask, items), len(items))
        except BadItem as bad:  # nothing was sent
            if not self._stats.get_value("urifilter/too_long"):
                logger.warning(_TOO_LONG, items[bad.indices[0]])
            self._stats.inc_value("urifilter/too_long", len(bad.indices))
            others = [item for index, item in enumerate(items) if index not in bad.indices]
            return await self._call_without_bad(ask, others) if others else ({}, None)
        return dict(zip(items, answers, strict=True)), error

    async def _call(self, ask: _Step, count: int) -> tuple[Sequence[int | None], UriFilterError | None]:
        """Call until the answers are there; return them, and the error if some are not."""
        began, lost = time.monotonic(), None
        while True:
            if not self._gone and (self._last or not self.away):
                since = time.monotonic()
                try:
                    return await ask(lost), None
                except BadItem:  # says nothing about Redis or the filter
                    raise
                except UriFilterError as error:
                    self._note(error, since)
                    lost = error if error.batch is not None or lost is None else lost
                    hopeless = isinstance(error, AnswerLost) and time.monotonic() > began + RECORDED
                    if hopeless or not _is_away(error):
                        break
            if self._last or self._options.on_error != "pause" or self._stopping():
                break
            await asyncio.sleep(PAUSE)
        answers = lost.answers if lost is not None else None
        return (answers or [None] * count), lost

    async def _look(self, look: Callable[[AsyncClaims], Awaitable[T]]) -> T | None:
        """Ask the claims once; None while Redis is away."""

        async def ask() -> T:
            await self._opened()
            assert self._mine is not None  # noqa: S101 - there are claims
            return await look(self._mine)

        return await self._once(ask)

    async def _once(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask once; None while Redis is away."""
        if self.away:
            return None
        since = time.monotonic()
        try:
            return await ask()
        except UriFilterError as error:
            self._note(error, since)
            return None

    def _settled(self, item: str | bytes, answer: int | None, error: UriFilterError | None) -> Answer:
        """Return the answer that ends a call.

        If it is lost for good the item counts as new, so that it is not lost. With claims it was not asked about: what
        the call may have claimed is given back by a beat.
        """
        if answer is not None:
            return Answer.NEW if answer else Answer.SEEN
        if isinstance(error, AnswerLost) and self._options.claiming is None:
            self.unsure.add(item)
            return Answer.NEW
        if self._options.on_error != "pass":
            return Answer.ASK
        self.passed[item] = None
        return Answer.PASS

    def _tell(self, error: UriFilterError) -> None:
        """Say once that the filter cannot be used."""
        if not self.is_unusable:
            logger.error("The filter cannot be used: %s", error)
        self.is_unusable = True

    def _note(self, error: UriFilterError, since: float) -> None:
        """Note that a call failed that began at a time by ``monotonic``: Redis is away, or the filter is unusable."""
        self._stats.inc_value("urifilter/errors")
        if not _is_away(error):
            self._tell(error)
            if self._options.on_error != "pass":
                self._close_spider("urifilter_error")
        elif self._last:
            self._gone = True
        elif not self.away:
            self._watch = asyncio.ensure_future(self._watch_for_return(since))
            logger.warning("%s; %s (URIFILTER_ON_ERROR)", error, _WHILE_AWAY[self._options.on_error])
            if self._options.on_error == "close":
                self._close_spider("urifilter_unavailable")

    async def _watch_for_return(self, since: float) -> None:
        """Wait until the server answers again; if it refuses, the next call says so to the crawl."""
        while True:
            try:
                await (await self._opened()).inserted()
                break
            except UriFilterError as error:
                if not _is_away(error):
                    break
            await asyncio.sleep(PAUSE)
        self._watch = None
        self._stats.inc_value("urifilter/seconds_away", round(time.monotonic() - since))
        logger.info("Redis is back")


def _is_away(error: UriFilterError) -> bool:
    """Whether an error is that of a server that will be back; one that refuses the password would refuse for ever."""
    return isinstance(error, ServerUnavailable | Restoring) and not needs_mending(error)


def _is_item(item: object) -> bool:
    """Whether an item may be a spider's; other tools claim other values."""
    return isinstance(item, str | bytes)
