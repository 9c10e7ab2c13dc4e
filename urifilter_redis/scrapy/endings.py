"""Endings: the filter is told in the background what became of addresses that were new to this crawl."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from urifilter_redis.scrapy.ending import COMMIT, FORGET, RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.statscollectors import StatsCollector

    from urifilter_redis.scrapy.ending import Ending
    from urifilter_redis.scrapy.link import Link

__all__ = ["Endings"]

logger = logging.getLogger(__name__)


#: The stats that count the items of each command.
_STATS = {
    "forget": "urifilter/given_back",
    "record": "urifilter/recorded",
    "release": "urifilter/given_back",
    "commit": "urifilter/committed",
}


class Endings:
    """Ends items in the background, many in one call.

    Args:
        link: the link to the filter.
        stats: the crawl's stats.
    """

    def __init__(self, link: Link, stats: StatsCollector) -> None:
        self._link, self._stats = link, stats
        self._items: dict[Ending, dict[str | bytes, None]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def forgets(self) -> bool:
        """Whether items are on their way to be forgotten: an answer about one of these may be untrue as it arrives."""
        return FORGET in self._items

    @property
    def items(self) -> set[str | bytes]:
        """The items that are on their way."""
        return {item for items in self._items.values() for item in items}

    def add(self, ending: Ending, items: Iterable[str | bytes]) -> None:
        """End items, soon."""
        items = dict.fromkeys(items)
        if not items:
            return
        self._items.setdefault(ending, {}).update(items)
        self._begin()

    async def settle(self) -> None:
        """Wait until all items have ended, or Redis is away.

        A question that overtook a forgetting would be answered "seen", and would lose the item.
        """
        if self._items and not self._link.away:
            self._begin()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def finish(self, *, commits: bool = True) -> None:
        """End all items now, or report how many cannot be ended; without ``commits`` nothing is committed any more."""
        kept = {} if commits else self._items.pop(COMMIT, {})
        if self._task is not None:
            await self._task
        if self._items:
            self._begin()
            await self.settle()
        self._items.pop(RECORD, None)  # others may fetch these pages, too: so it is with "pass"
        if left := self.items | kept.keys():
            logger.error(self._link.left_behind, len(left))

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        try:
            while self._items:
                ending, found = next(iter(self._items.items()))
                items = list(found)
                if not await self._link.end(ending, items):
                    return
                self._stats.inc_value(_STATS[ending.command], len(items))
                for item in items:
                    del found[item]
                if not found:
                    self._items.pop(ending, None)
        finally:
            self._task = None
