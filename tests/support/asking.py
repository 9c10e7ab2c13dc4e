"""Opening a filter and asking it something, with each of the clients."""

from __future__ import annotations

import asyncio

from urifilter_redis import AsyncUriFilter, Timeouts, UriFilter

#: If it were tried again and again, the message would say so.
SHORT = Timeouts(total=0.3)


def blocking(url):
    with UriFilter.open("news", redis=url, timeouts=SHORT) as news:
        return news.contains("x")


def awaited(url):
    async def ask():
        async with await AsyncUriFilter.open("news", redis=url, timeouts=SHORT) as news:
            return await news.contains("x")

    return asyncio.run(ask())
