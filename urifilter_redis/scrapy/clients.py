"""The clients of a crawl: an asyncio one for batches, and a blocking one for single requests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from urifilter_redis.aio import AsyncUriFilter
from urifilter_redis.client import UriFilter
from urifilter_redis.engine.holdings import Outstanding
from urifilter_redis.engine.rotation_timer import RotationTimer
from urifilter_redis.engine.steps import TOTAL, Timeouts
from urifilter_redis.errors import ConfigMismatch, FilterNotFound, UriFilterError
from urifilter_redis.protocol.claims import MOST_DELAY
from urifilter_redis.scrapy.ending import Ending
from urifilter_redis.scrapy.options import NO_EFFECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from urifilter_redis.claiming.awaited import AsyncClaims
    from urifilter_redis.claiming.blocking import Claims
    from urifilter_redis.engine.holdings import Claim
    from urifilter_redis.protocol.config import Config
    from urifilter_redis.scrapy.options import Options

__all__ = ["Clients", "Step"]

logger = logging.getLogger(__name__)

#: A call, given the error of an earlier attempt.
Step = Callable[[UriFilterError | None], Awaitable[list[bool]]]

#: Seconds for which nobody gets an item that is released in order to be forgotten.
_HIDDEN = 60


class Clients:
    """Inserts or claims items, as the settings say, and ends them.

    Only the asyncio client forgets items and has a near cache, so that the cache hears of everything that this process
    forgets. With claims each of the two is a holder.

    Args:
        options: the crawl's settings.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._asynchronous: AsyncUriFilter | None = None
        self._blocking: UriFilter | None = None
        self._mine: AsyncClaims | None = None
        self._mine_now: Claims | None = None
        self._opening = asyncio.Lock()
        self._left: list[AsyncUriFilter | None] = []

    async def opened(self) -> AsyncUriFilter:
        """Return the asyncio client; open the filter, or make it, before.

        Raises:
            UriFilterError: the filter cannot be opened.
        """
        async with self._opening:
            if self._asynchronous is None:
                self._asynchronous = await self._open_or_create()
                self._check(self._asynchronous.config)
                await self._rotate(self._asynchronous)
            if self._mine is None and self._options.claiming is not None:
                self._mine = self._asynchronous.claims(self._options.claiming.lease)
            return self._asynchronous

    def opened_now(self) -> UriFilter:
        """Return the blocking client; open the filter, or make it, before.

        Raises:
            UriFilterError: the filter cannot be opened.
        """
        options = self._options
        where: dict[str, Any] = {"timeouts": Timeouts(total=TOTAL)} | options.where  # the reactor waits for it
        if self._blocking is None and not options.filter:
            with contextlib.suppress(FilterNotFound):
                self._blocking = UriFilter.open(options.name, **where)
        if self._blocking is None:
            self._blocking = UriFilter.create(options.name, **where, **options.to_make)
        self._check(self._blocking.config)
        if self._mine_now is None and options.claiming is not None:
            self._mine_now = self._blocking.claims(options.claiming.lease)
        return self._blocking

    async def ask(
        self, payloads: Mapping[str | bytes, str | None], items: Sequence[str | bytes], lost: UriFilterError | None
    ) -> list[bool]:
        """Insert or claim items; return whether each is new. ``lost`` is the error of an earlier attempt."""
        news = await self.opened()
        if self._mine is None:
            return await news.insert_many(items, retry=lost)
        return await self._mine.claim_many(items, payload=lambda item: payloads.get(item) or item, retry=lost)

    def ask_now(self, item: str | bytes, payload: str | None, lost: UriFilterError | None = None) -> bool:
        """Insert or claim one item, and wait for the answer."""
        news = self.opened_now()
        if self._mine_now is None:
            return news.insert(item, retry=lost)
        return self._mine_now.claim(item, payload=payload or item, retry=lost)

    def steps(self, ending: Ending, items: Sequence[str | bytes]) -> list[tuple[int, Step]]:
        """Return the calls that end items, each with the number of its items, to be made one after the other.

        With claims the client that has an item in hand lets go of it. What is to be forgotten is released before, and
        offered to nobody meanwhile.
        """
        forget = (len(items), functools.partial(self._forget, items))
        if self._mine is None:
            record = (len(items), functools.partial(self.ask, {}, items))
            return [record if ending.command == "record" else forget]
        if ending.command == "forget":
            return [*self.steps(Ending("release", _HIDDEN), items), forget]
        now = set() if self._mine_now is None else {claim.item for claim in self._mine_now.held}
        parts = [([each for each in items if each not in now], self._end)]
        parts.append(([each for each in items if each in now], self._end_now))
        return [(len(part), functools.partial(end, ending, part)) for part, end in parts if part]

    async def reclaim(self, limit: int) -> list[Claim]:
        """Take in hand what dead holders had and what is due again; other items than text and bytes go back."""
        await self.opened()
        if self._mine is None:
            return []
        found = await self._mine.reclaim(limit)
        others = [claim.item for claim in self._mine.held if not _is_item(claim.item)]  # of no spider
        if others:
            with contextlib.suppress(UriFilterError):  # the next look tries it again
                await self._mine.release(others, delay=MOST_DELAY)
        return [claim for claim in found if _is_item(claim.item)]

    async def outstanding(self) -> Outstanding:
        """Return how many items other processes have in hand."""
        await self.opened()
        if self._mine is None:
            return Outstanding(0, None)
        found = await self._mine.outstanding()
        own = 0 if self._mine_now is None else len(self._mine_now.held)
        return Outstanding(max(0, found.others - own), found.due)

    @property
    def lease(self) -> float:
        """Seconds for which items stay in hand without a sign of life; 0 without claims."""
        return 0.0 if self._mine is None else self._mine.lease

    @property
    def held(self) -> set[str | bytes]:
        """The items that this process has in hand, as far as it knows, but for those that are of no spider."""
        claims = [claim for each in (self._mine, self._mine_now) if each is not None for claim in each.held]
        return {claim.item for claim in claims if _is_item(claim.item)}

    def drop(self) -> None:
        """Remove the filter; the next call makes it anew.

        Raises:
            UriFilterError: the server is away.
        """
        self.opened_now().drop()
        self.opened_now().close()
        self._left.append(self._asynchronous)
        self._blocking = self._asynchronous = None

    async def close(self) -> None:
        """Give back what is in hand, and close both clients."""
        if self._mine is not None:
            await self._mine.close()
        if self._mine_now is not None:
            await asyncio.to_thread(self._mine_now.close)
        for each in (*self._left, self._asynchronous):
            if each is not None:
                await each.close()
        if self._blocking is not None:
            await asyncio.to_thread(self._blocking.close)

    async def _forget(self, items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
        return await (await self.opened()).forget(items, retry=lost)

    async def _end(self, ending: Ending, items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
        assert self._mine is not None  # noqa: S101 - there are claims
        if ending.command == "commit":
            return await self._mine.commit(items, retry=lost)
        return await self._mine.release(items, delay=ending.delay, failed=ending.failed, retry=lost)

    async def _end_now(self, ending: Ending, items: Sequence[str | bytes], lost: UriFilterError | None) -> list[bool]:
        assert self._mine_now is not None  # noqa: S101 - likewise
        if ending.command == "commit":
            return await asyncio.to_thread(self._mine_now.commit, items, retry=lost)
        release = functools.partial(self._mine_now.release, delay=ending.delay, failed=ending.failed, retry=lost)
        return await asyncio.to_thread(release, items)

    def _check(self, config: Config) -> None:
        """Check that a filter suits the items of this crawl.

        Raises:
            ConfigMismatch: it normalises addresses, and the items are fingerprints; or its items are others.
        """
        if config.items not in {None, self._options.items}:
            raise ConfigMismatch(
                f"{self._options.name}: this filter's items were made by a URIFILTER_KEY that is {config.items!r}, and "
                f"not {self._options.items!r}: set that, or another URIFILTER_NAME",
                {"items": (self._options.items, config.items)},
            )
        if self._options.key is None and config.normalize != "none":
            raise ConfigMismatch(f"{self._options.name}: this filter's normalize = {config.normalize!r} {NO_EFFECT}")

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

    async def _open_or_create(self) -> AsyncUriFilter:
        options = self._options
        where = options.where | options.cache
        if not options.filter:
            with contextlib.suppress(FilterNotFound):
                return await AsyncUriFilter.open(options.name, **where)
        return await AsyncUriFilter.create(options.name, **where, **options.to_make)


def _is_item(item: object) -> bool:
    """Whether an item may be a spider's; other tools claim other values."""
    return isinstance(item, str | bytes)
