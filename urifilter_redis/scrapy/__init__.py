"""For Scrapy: a crawl asks a filter that it shares with other crawls; it needs Scrapy 2.13 or newer (extra ``scrapy``).

``ADDONS = {"urifilter_redis.scrapy.UriFilterAddon": 100}`` in a project's ``settings.py`` sets it up: a scheduler
around the project's own asks about the requests that gather while Scrapy's loop turns. A spider middleware tells it
which requests are starts, and when a page has come to its end.
"""

import importlib.util

from urifilter_redis.extras import how_to_get

if importlib.util.find_spec("scrapy") is None:
    raise ModuleNotFoundError(f"urifilter_redis.scrapy needs Scrapy: {how_to_get('scrapy')}", name="scrapy")

from urifilter_redis.scrapy.addon import UriFilterAddon
from urifilter_redis.scrapy.middleware import UriSpiderMiddleware
from urifilter_redis.scrapy.scheduler import UriDupeFilter, UriFilterScheduler

__all__ = ["UriDupeFilter", "UriFilterAddon", "UriFilterScheduler", "UriSpiderMiddleware"]
