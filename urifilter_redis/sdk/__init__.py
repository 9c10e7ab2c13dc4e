"""The SDK: what a crawler asks the HTTP service, blocking and awaited; it needs httpx (extra ``sdk``).

A request that inserts has a key, and is repeated under it until its answer is there, so that "new" is answered exactly
once whatever happens on the way.
"""

import importlib.util

from urifilter_redis.errors import FilterAPIError
from urifilter_redis.extras import how_to_get

if importlib.util.find_spec("httpx") is None:
    raise ModuleNotFoundError(f"the SDK needs httpx: {how_to_get('sdk')}", name="httpx")

from urifilter_redis.sdk.aio import AsyncFilterAPIClient
from urifilter_redis.sdk.client import FilterAPI, FilterAPIClient

__all__ = ["AsyncFilterAPIClient", "FilterAPI", "FilterAPIClient", "FilterAPIError"]
