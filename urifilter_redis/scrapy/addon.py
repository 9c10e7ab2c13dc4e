"""The add-on: one line in a project's settings sets up all parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from urifilter_redis.scrapy.downloads import UriDownloaderMiddleware
from urifilter_redis.scrapy.dupefilter import UriDupeFilter
from urifilter_redis.scrapy.pages import UriSpiderMiddleware

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

__all__ = ["UriFilterAddon"]


#: Scrapy's commands that look at single pages, for a person: what they fetch must be nobody's page, and be seen later.
_LOOKS = {"check", "fetch", "parse", "shell", "view"}


class UriFilterAddon:
    """Sets the dupefilter, the spider middleware and the downloader middleware; a project's own settings come first.

    ``scrapy parse``, ``shell``, ``fetch``, ``view`` and ``check`` keep Scrapy's own filter.

    Example:
        >>> ADDONS = {"urifilter_redis.scrapy.UriFilterAddon": 100}
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set what the project has not set.

        Args:
            settings: the crawl's settings.
        """
        if _command() in _LOOKS:
            return
        settings.set("DUPEFILTER_CLASS", UriDupeFilter, "addon")
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", UriSpiderMiddleware, 10)
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", UriDownloaderMiddleware, 40)


def _command() -> str | None:
    """Return the command of the program ``scrapy``, which takes it out of ``sys.argv``; None in other programs."""
    words = sys.orig_argv
    program = next((n for n, each in enumerate(words) if Path(each).stem == "scrapy"), len(words))
    return next((each for each in words[program + 1 :] if not each.startswith("-")), None)
