"""The add-on: one line in a project's settings sets up all parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from urifilter_redis.scrapy.middleware import UriSpiderMiddleware
from urifilter_redis.scrapy.scheduler import UriDupeFilter, UriFilterScheduler

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

#: Scrapy's commands that look at single pages, for a person: what they fetch must be nobody's page, and be seen later.
_LOOKS = {"check", "fetch", "parse", "shell", "view"}


class UriFilterAddon:
    """Puts the scheduler around the project's own, in place of Scrapy's dupefilter, and sets the spider middleware.

    ``scrapy parse``, ``shell``, ``fetch``, ``view`` and ``check`` keep Scrapy's own filter.

    Example:
        >>> ADDONS = {"urifilter_redis.scrapy.UriFilterAddon": 100}
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set the parts in a crawl's settings."""
        if _command() in _LOOKS:
            return
        if settings["SCHEDULER"] is not UriFilterScheduler:
            settings.set("URIFILTER_SCHEDULER", settings["SCHEDULER"], "addon")
        for name, part in {"SCHEDULER": UriFilterScheduler, "DUPEFILTER_CLASS": UriDupeFilter}.items():
            settings.set(name, part, max(settings.getpriority(name) or 0, 15))  # 15: an add-on's
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", UriSpiderMiddleware, 10)


def _command() -> str | None:
    """Return the command of the program ``scrapy``, which takes it out of ``sys.argv``; None in other programs."""
    words = sys.orig_argv
    program = next((n for n, each in enumerate(words) if Path(each).stem == "scrapy"), len(words))
    return next((each for each in words[program + 1 :] if not each.startswith("-")), None)
