"""For Scrapy: a crawl asks a filter that it shares with other crawls; it needs Scrapy 2.13 or newer (extra ``scrapy``).

``ADDONS = {"urifilter_redis.scrapy.UriFilterAddon": 100}`` in a project's ``settings.py`` sets all of it up. The spider
middleware asks about all requests of a page at once. The dupefilter asks about requests that come another way. The
downloader middleware notes which downloads failed for good: their addresses are new again after the crawl.
"""

import importlib.util

from urifilter_redis.extras import how_to_get

if importlib.util.find_spec("scrapy") is None:
    raise ModuleNotFoundError(f"urifilter_redis.scrapy needs Scrapy: {how_to_get('scrapy')}", name="scrapy")

from urifilter_redis.scrapy.addon import UriFilterAddon
from urifilter_redis.scrapy.downloads import UriDownloaderMiddleware
from urifilter_redis.scrapy.dupefilter import UriDupeFilter
from urifilter_redis.scrapy.pages import UriSpiderMiddleware

__all__ = ["UriDownloaderMiddleware", "UriDupeFilter", "UriFilterAddon", "UriSpiderMiddleware"]
