"""The answers for the page: all filters at a glance, and one filter with its plots."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from urifilter_redis.service.overview import SPANS, Overview, plotted
from urifilter_redis.service.sampling import Sampler
from urifilter_redis.service.status import Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from urifilter_redis.service.filters import Filters
    from urifilter_redis.service.tokens import Token

__all__ = ["Looks"]


class Looks:
    """The looks at filters, at Redis, and at the service itself."""

    def __init__(self, filters: Filters, workers: int) -> None:
        """Look at nothing yet; ``workers`` is the number of the service's workers."""
        self._filters = filters
        self._sampler = Sampler(filters)
        self._overview = Overview(filters, self._sampler)
        self._status = Status(filters, workers)

    @contextlib.asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Take the samples for the plots meanwhile."""
        task = asyncio.create_task(self._sampler.run())
        try:
            yield
        finally:
            task.cancel()

    async def overview(self, token: Token) -> dict[str, Any]:
        """Return the overview of the filters of a token; of Redis and the service only to a token of all filters.

        Raises:
            UriFilterError: Redis is away, or refuses.
        """
        glance = await self._overview.look()
        return {
            "now": glance.now,
            "access": token.access,
            "latency": glance.latency,
            "filters": [row for name, row in glance.rows.items() if token.may_use(name)],
            "redis": await self._status.redis() if token.may_use_all else None,
            "service": self._status.service() if token.may_use_all else None,
        }

    async def detail(self, token: Token, name: str) -> dict[str, Any]:
        """Return a filter with its plots.

        Raises:
            UriFilterError: the filter does not answer.
        """
        measured, row, series = await self._overview.of(name)
        now = measured.at + time.monotonic() - measured.taken
        known = series.of(measured.info.uid)
        return {
            "filter_typeid": name,
            "now": now,
            "measured": measured.at,
            "access": token.access,
            "row": row,
            "info": measured.info.to_dict(),
            "plots": {span: plotted(known, seconds, now) for span, seconds in SPANS.items()},
            "plots_refused": series.refused,
            "meta": self._filters.meta_of(name),
        }
