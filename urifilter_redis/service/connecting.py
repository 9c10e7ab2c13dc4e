"""The way from the service's settings to its filters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.service.filters import Filters
from urifilter_redis.storage.backends import named_backend
from urifilter_redis.transport.connections import AsyncConnector, SharedConnector
from urifilter_redis.transport.url import Address

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.exceptions import RedisError

    from urifilter_redis.service.settings import ServiceSettings

__all__ = ["connect", "try_all"]


async def connect(settings: ServiceSettings, note: Callable[[RedisError], object] = lambda _: None) -> Filters:
    """Return the filters of the settings; none is opened yet.

    Args:
        settings: the service's settings.
        note: called with each error that Redis answers.

    Raises:
        ServerUnavailable: the embedded server does not start.
    """
    timeouts = Timeouts(total=settings.timeout)
    address = await asyncio.to_thread(Address, settings.redis_url)
    one = AsyncConnector(address, timeouts)
    connector = SharedConnector(one, one.patience, note)
    wanted = {name: each.settings() for name, each in settings.filters.items()}
    large = {name for name, each in settings.filters.items() if each.large}
    backend = named_backend(settings.archive or "", asynchronous=True)
    return Filters(connector, backend, wanted, settings.prefix, timeouts, large, settings.rotate)


def try_all(settings: ServiceSettings) -> None:
    """Make, restore or open all filters once.

    Raises:
        UriFilterError: the error of the first filter of the settings that does not open.
    """

    async def open_all() -> None:
        filters = await connect(settings)
        try:
            await filters.open_all()
        finally:
            await filters.close()

    asyncio.run(open_all())
