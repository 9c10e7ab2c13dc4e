"""Holding: requests that wait until Redis is back, where no other part of the crawl will ask about them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from urifilter_redis.scrapy.gathering import MOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from scrapy import Request

__all__ = ["Holding"]


class Holding:
    """The requests of a dupefilter that is used alone.

    Args:
        let_go: asks about requests and schedules those that are new; waits while Redis is away.
    """

    def __init__(self, let_go: Callable[[Sequence[Request]], Awaitable[None]]) -> None:
        self._let_go = let_go
        #: The requests that wait.
        self.requests: dict[Request, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, request: Request) -> None:
        """Keep a request until Redis is back."""
        self.requests[request] = None
        self._task = self._task or asyncio.ensure_future(self._empty())

    def stop(self) -> None:
        """Keep the requests for good, because the spider closes."""
        if self._task is not None:
            self._task.cancel()

    async def _empty(self) -> None:
        while self.requests:
            await self._let_go(list(itertools.islice(self.requests, MOST)))
        self._task = None
