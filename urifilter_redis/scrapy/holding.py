"""Holding: requests that wait until Redis is back, where no other part of the crawl will ask about them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from urifilter_redis.scrapy import engine
from urifilter_redis.scrapy.gathering import MOST
from urifilter_redis.scrapy.page import Page

if TYPE_CHECKING:
    from scrapy import Request

    from urifilter_redis.scrapy.judge import Judge

__all__ = ["Holding"]


class Holding:
    """The requests of a dupefilter that is used alone.

    Args:
        judge: the judge of the crawl.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        #: The requests that wait.
        self.requests: dict[Request, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, request: Request) -> None:
        """Keep a request until Redis is back."""
        self.requests[request] = None
        self._task = self._task or asyncio.ensure_future(self._let_go())

    def stop(self) -> None:
        """Keep the requests for good, because the spider closes."""
        if self._task is not None:
            self._task.cancel()

    async def _let_go(self) -> None:
        crawler = self._judge.crawler
        while self.requests:
            requests, page = list(itertools.islice(self.requests, MOST)), Page(crawler, None)
            for request, seen in zip(requests, await self._judge.judge(requests, page), strict=True):
                del self.requests[request]
                if seen:
                    self._judge.filtered(request, signal=False)
                else:
                    engine.crawl(crawler, request)
            self._judge.end(page)
        self._task = None
