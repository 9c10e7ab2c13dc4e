"""The add-on: one line in a project's settings sets up all parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from urifilter_redis.scrapy.downloads import UriDownloaderMiddleware
from urifilter_redis.scrapy.dupefilter import UriDupeFilter
from urifilter_redis.scrapy.pages import UriSpiderMiddleware

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

__all__ = ["UriFilterAddon"]


class UriFilterAddon:
    """Sets the dupefilter, the spider middleware and the downloader middleware; a project's own settings come first.

    Example:
        >>> ADDONS = {"urifilter_redis.scrapy.UriFilterAddon": 100}
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set what the project has not set.

        Args:
            settings: the crawl's settings.
        """
        settings.set("DUPEFILTER_CLASS", UriDupeFilter, "addon")
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", UriSpiderMiddleware, 10)
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", UriDownloaderMiddleware, 40)
