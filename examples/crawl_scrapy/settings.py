"""The project's settings: one line makes all its spiders share a filter.

With CLAIM=1 in the environment no page is lost with a crawl that is killed: the others fetch its pages.
"""

import os

SPIDER_MODULES = ["site_spider"]
ADDONS = {"urifilter_redis.scrapy.UriFilterAddon": 100}

BOT_NAME = "crawl_scrapy"  # the filter's name, too
URIFILTER_REDIS_URL = os.environ.get("URIFILTER_REDIS_URL")  # None: the embedded server
URIFILTER_CAPACITY = 1_000_000
URIFILTER_AGAIN_AFTER = "30d"  # pages are fetched again after that time
URIFILTER_CLAIM = os.environ.get("CLAIM") == "1"

TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "INFO"
