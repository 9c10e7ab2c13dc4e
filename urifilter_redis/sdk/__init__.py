"""The SDK: the clients with which a crawler asks the HTTP service; it needs httpx (extra ``sdk``).

A request that inserts carries a key, and is repeated under this key until its answer arrives. So "new" is answered
exactly once, even if an answer is lost on the way.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

from urifilter_redis.errors import FilterAPIError
from urifilter_redis.extras import how_to_get

if importlib.util.find_spec("httpx") is None:
    raise ModuleNotFoundError(f"the SDK needs httpx: {how_to_get('sdk')}", name="httpx")

from urifilter_redis.sdk.aio import AsyncFilterAPIClient
from urifilter_redis.sdk.client import FilterAPIClient
from urifilter_redis.sdk.connection import TIMEOUTS, Timeouts, Verify

__all__ = ["AsyncFilterAPIClient", "FilterAPI", "FilterAPIClient", "FilterAPIError", "Timeouts"]


def FilterAPI(  # noqa: N802, PLR0913 - the name that crawlers know, and what they can say
    filter_typeid: str,
    URI_list: Iterable[object],  # noqa: N803 - likewise
    access_token: str | None = None,
    *,
    url: str | None = None,
    timeouts: Timeouts = TIMEOUTS,
    verify: Verify = None,
    proxy: str | None = None,
    retry: FilterAPIError | None = None,
) -> dict[str, Any]:
    """Insert items over a connection that is opened for this call; return the new ones.

    Use a ``FilterAPIClient`` for more than one call: it keeps its connections.

    Args:
        filter_typeid: the filter's name.
        URI_list: any number of items: URIs, or any other JSON values.
        access_token: the token that the service's operator gave you; None: ``URIFILTER_API_TOKEN``, else no token.
        url: the service's address; None: ``URIFILTER_API_URL``, else ``http://127.0.0.1:8000``.
        timeouts: how long to wait, in seconds; see ``Timeouts``.
        verify: the certificates to trust: a file or folder of CA certificates, or an ``ssl.SSLContext``; None: those of
            ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, else those of ``certifi``.
        proxy: the URL of a proxy to the service; None: no proxy.
        retry: the error that this function raised for the same items; only items without an answer are asked again. It
            is valid for eight minutes, in the process that got it.

    Returns:
        ``filter_typeid`` (the filter's name), ``URI_list_unique`` (the new items in their order, each once), ``total``
        (the number of items) and ``unique`` (the number of new ones).

    Raises:
        FilterAPIError: the service refused, or could not be reached. ``answers`` has the answers that arrived. After
            ``error_code`` ``answer_lost`` the service may have inserted the items: pass the error as ``retry=``.
        TypeError: one string was given instead of a list of items.
        ValueError: ``retry`` is the error of another call, or the address, the token, the certificates or the proxy
            cannot be used.

    Example:
        >>> FilterAPI("news", ["https://example.com/", "https://example.com/"], url="http://localhost:8000")
        {'filter_typeid': 'news', 'URI_list_unique': ['https://example.com/'], 'total': 2, 'unique': 1}
    """
    with FilterAPIClient(url, access_token, timeouts=timeouts, verify=verify, proxy=proxy) as api:
        return api.filter(filter_typeid, URI_list, retry=retry)
