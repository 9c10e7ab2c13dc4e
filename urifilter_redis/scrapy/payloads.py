"""Payloads: a request as JSON text, so that another crawl of the same spider can fetch its page."""

from __future__ import annotations

import base64
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.request import request_from_dict

from urifilter_redis.bloom.encoding import MOST_BYTES
from urifilter_redis.scrapy.marks import META

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.spiders import Spider
    from scrapy.statscollectors import StatsCollector

__all__ = ["Payloads", "named", "text_of", "to_request", "url_alone"]

logger = logging.getLogger(__name__)


class Payloads:
    """Makes the payloads of a crawl; it says once that a request could not be written.

    Args:
        crawler: the crawl.
        stats: the crawl's stats.
    """

    def __init__(self, crawler: Crawler, stats: StatsCollector) -> None:
        self._crawler, self._stats, self._told = crawler, stats, False

    def of(self, request: Request) -> str | None:
        """Return a request as text: all of it, or its address alone; None if even that is too long."""
        spider = self._crawler.spider
        assert spider is not None  # noqa: S101 - there are requests
        try:
            return text_of(request, spider)
        except ValueError as error:
            self._stats.inc_value("urifilter/url_only")
            if not self._told:
                text = (
                    "%s is claimed with its address alone, so that another crawl would give its page to parse(): %s"
                    " - no more of these will be shown (see urifilter/url_only)"
                )
                logger.warning(text, request, error)
            self._told = True
            return url_alone(request, spider)


def text_of(request: Request, spider: Spider) -> str:
    """Return a request, with the spider's name, as JSON text.

    Raises:
        ValueError: a callback is no method of the spider, a value is no JSON, or the text has more than 64 KiB.
    """
    fields = request.to_dict(spider=spider)
    fields["meta"] = {key: value for key, value in fields["meta"].items() if key != META}
    fields["headers"] = {
        name.decode("latin-1"): [each.decode("latin-1") for each in values]
        for name, values in fields["headers"].items()
    }
    fields["body"] = base64.b64encode(fields["body"]).decode()
    fields = {name: value for name, value in fields.items() if value}  # the others are as they are by default
    try:
        text = _written(spider, fields)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if json.loads(text)["request"] != fields:
        raise ValueError("a tuple or a key that is no text would come back as something else")
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return text


def url_alone(request: Request, spider: Spider) -> str | None:
    """Return a request's address, with the spider's name, as JSON text; None if it is longer than 64 KiB."""
    text = _written(spider, {"url": request.url})
    return text if len(text) <= MOST_BYTES else None


def named(text: object) -> tuple[str, str]:
    """Return the name of the spider that a payload is for, and the request's address.

    Raises:
        ValueError: it is no payload of this module.
    """
    read = _read(text)
    return str(read["spider"]), str(read["request"].get("url"))


def to_request(text: str, spider: Spider) -> Request:
    """Return the request of a payload, with the spider's own methods as callbacks.

    Raises:
        ValueError: it is no payload of this module, or the spider has no such method.
    """
    fields = dict(_read(text)["request"])
    try:
        fields["headers"] = {
            name.encode("latin-1"): [each.encode("latin-1") for each in values]
            for name, values in fields.get("headers", {}).items()
        }
        fields["body"] = base64.b64decode(fields.get("body", ""))
        _check_class(fields.get("_class"))
        return request_from_dict(fields, spider=spider)
    except (AttributeError, ImportError, KeyError, NameError, TypeError) as error:
        raise ValueError(f"not a request: {error}") from error


def _check_class(path: Any) -> None:
    """Check that the class of a request is one that this crawl has imported: Redis must not name what is imported.

    Raises:
        ValueError: it is none.
    """
    if path is not None:
        module, _, name = str(path).rpartition(".")
        found = getattr(sys.modules.get(module), name, None)
        if not isinstance(found, type) or not issubclass(found, Request):
            raise ValueError(f"not a request: {path} is no class of requests that is imported here")


def _written(spider: Spider, fields: dict[str, Any]) -> str:
    return json.dumps({"spider": spider.name, "request": fields}, allow_nan=False, separators=(",", ":"))


def _read(text: object) -> dict[str, Any]:
    read = json.loads(text) if isinstance(text, str) else None
    if not isinstance(read, dict) or not isinstance(read.get("request"), dict) or "spider" not in read:
        raise ValueError("not a request that a spider has claimed")
    return read
