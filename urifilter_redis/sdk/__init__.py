"""The SDK: the clients with which a crawler asks the HTTP service; it needs httpx (extra ``sdk``).

A request that inserts carries a key, and is repeated under this key until its answer arrives. So "new" is answered
exactly once, even if an answer is lost on the way.
"""

import importlib.util

from urifilter_redis.errors import FilterAPIError
from urifilter_redis.extras import how_to_get

if importlib.util.find_spec("httpx") is None:
    raise ModuleNotFoundError(f"the SDK needs httpx: {how_to_get('sdk')}", name="httpx")

from urifilter_redis.sdk.aio import AsyncFilterAPIClient
from urifilter_redis.sdk.client import FilterAPI, FilterAPIClient
from urifilter_redis.sdk.reaching import Timeouts

__all__ = ["AsyncFilterAPIClient", "FilterAPI", "FilterAPIClient", "FilterAPIError", "Timeouts"]
