"""Giving back: items that were answered "new", and whose pages will not be fetched, become new again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.statscollectors import StatsCollector

    from urifilter_redis.scrapy.link import Link

__all__ = ["GivingBack"]

logger = logging.getLogger(__name__)


class GivingBack:
    """Forgets items in the background.

    Args:
        link: the link to the filter.
        stats: the crawl's stats.
    """

    def __init__(self, link: Link, stats: StatsCollector) -> None:
        self._link, self._stats = link, stats
        self._items: dict[str | bytes, None] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether the filter has forgotten all items that were given back."""
        return not self._items

    def add(self, items: Iterable[str | bytes]) -> None:
        """Make items new again, soon."""
        self._items |= dict.fromkeys(items)
        if self._items and self._task is None:
            self._task = asyncio.ensure_future(self._forget())

    async def settle(self) -> None:
        """Wait until the filter has forgotten all items, or Redis is away.

        A question that overtook them would be answered "seen", and would lose the item.
        """
        if self._items and self._task is None and not self._link.away:
            self.add(())
        if self._task is not None:
            await asyncio.shield(self._task)

    async def finish(self) -> None:
        """Forget all items now, or report how many cannot be forgotten."""
        if self._task is not None:
            await self._task
        self.add(())
        await self.settle()
        if self._items:
            logger.error("%d addresses were not fetched and stay seen, because Redis is away", len(self._items))

    async def _forget(self) -> None:
        try:
            while self._items:
                items = list(self._items)
                if not await self._link.forget(items):
                    return
                self._stats.inc_value("urifilter/given_back", len(items))
                for item in items:
                    del self._items[item]
        finally:
            self._task = None
