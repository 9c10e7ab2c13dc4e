"""Claims: requests as texts that other crawls can fetch, and an idle spider that takes over what they have left."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.request import request_from_dict

from urifilter_redis.bloom.encoding import MOST_BYTES
from urifilter_redis.engine.holdings import AFTER_DUE
from urifilter_redis.protocol.claims import MOST_DELAY
from urifilter_redis.scrapy.fetches import META
from urifilter_redis.scrapy.link import Ending

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.spiders import Spider

    from urifilter_redis.engine.holdings import Claim
    from urifilter_redis.scrapy.crawl import Crawl
    from urifilter_redis.scrapy.options import Claiming

__all__ = ["Reclaiming", "named", "text_of", "to_request", "written"]

logger = logging.getLogger(__name__)

#: The most pages that a crawl takes over at once.
MOST = 100

#: Seconds between two looks of an idle spider.
PAUSE = 1.0


class Reclaiming:
    """Asks the filter whenever the spider is idle.

    Pages that this spider cannot fetch are parked: released for ten minutes each time. It does not wait for them.
    """

    def __init__(self, crawl: Crawl, claiming: Claiming) -> None:
        self._crawl, self._claiming = crawl, claiming
        self._parked: dict[str | bytes, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._may_close, self._stopped = False, asyncio.Event()

    def stays(self) -> bool:
        """Whether a spider that is idle has to stay open; the look that decides it goes on in the background."""
        if self._may_close:
            self._may_close = False
            return False
        if self._task is None:
            lost = self._crawl.link.held - self._crawl.outcomes.ending
            self._park(lost, "a part of this crawl dropped its request, and did not say so")
            self._task = asyncio.ensure_future(self._look())
        return True

    async def stop(self) -> None:
        """Look no more; what a look that is under way still brings stays in hand."""
        self._stopped.set()
        if self._task is not None:  # cancelled, it would leave pages that nobody gets before their lease is over
            await asyncio.wait([self._task])

    def busy(self) -> None:
        """Note that there is something to do."""
        self._may_close = False

    async def _look(self) -> None:
        try:
            await self._crawl.outcomes.settle()
            claims = [] if self._stopped.is_set() else await self._crawl.link.reclaim(MOST)
            if self._stopped.is_set():
                return
            if claims:
                self._crawl.stats.inc_value("urifilter/reclaimed", len(claims))
                found = [(self._request_of(claim), claim.item) for claim in claims]
                self._park(self._crawl.take_over([(each, item) for each, item in found if each is not None]), None)
                await self._crawl.outcomes.settle()
            elif await self._others_work():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE):
                        await self._stopped.wait()
            else:
                self._may_close = True
        finally:
            self._task = None
            self._crawl.nudge()

    def _request_of(self, claim: Claim) -> Request | None:
        """Return the request of a claim; None if it is given up or parked."""
        spider = self._crawl.crawler.spider
        assert spider is not None  # noqa: S101 - it is idle
        try:
            name, url = named(claim.payload)
            request = to_request(claim.payload, spider) if name == spider.name else None
        except ValueError as error:
            self._crawl.stats.inc_value("urifilter/unreadable")
            self._park([claim.item], f"it cannot be fetched: {error}")
            return None
        if request is None:
            self._park([claim.item], None)  # another spider's
        elif claim.lapses >= self._claiming.lapses:
            self._crawl.stats.inc_value("urifilter/parked")
            self._park([claim.item], f"{url} killed {claim.lapses} crawls, it seems: commit or forget it, or wait")
        elif self._crawl.outcomes.is_worth_trying(claim):
            return request
        return None

    def _park(self, items: Iterable[str | bytes], why: str | None) -> None:
        """Release items for ten minutes, and say why, if there is something to say."""
        until = time.monotonic() + MOST_DELAY
        for item in items:
            if why is not None:
                logger.warning("%s is set aside for ten minutes: %s", item, why)
            self._parked[item] = until
            self._crawl.outcomes.end(Ending("release", MOST_DELAY), [item])

    async def _others_work(self) -> bool:
        """Whether others have pages in hand that may come to this spider soon, or Redis has to say so yet."""
        found = await self._crawl.link.outstanding()
        if found is None:
            return self._crawl.options.on_error == "pause"
        now = time.monotonic()
        self._parked = {item: until for item, until in self._parked.items() if until > now}
        if found.due is None or found.others <= len(self._parked):
            return False
        # What is due later is parked by others: everybody else beats within a lease, and failures come sooner. The look
        # itself, for which ``due`` may wait, comes AFTER_DUE.
        return found.due <= max(self._crawl.link.lease, self._claiming.longest_delay) + 2 * AFTER_DUE


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
        text = written(spider, fields)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not all(_comes_back(fields.get(name)) for name in ("meta", "cb_kwargs", "cookies", "flags")):
        raise ValueError("a tuple or a key that is no text would come back as something else")
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return text


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
    """Check that the class of a request is one that this crawl has imported: Redis must not name what is imported."""
    if path is not None:
        module, _, name = str(path).rpartition(".")
        found = getattr(sys.modules.get(module), name, None)
        if not isinstance(found, type) or not issubclass(found, Request):
            raise ValueError(f"not a request: {path} is no class of requests that is imported here")


def _comes_back(value: Any) -> bool:
    """Whether a value is the same once it was JSON text."""
    if isinstance(value, dict):
        return all(type(name) is str and _comes_back(each) for name, each in value.items())
    return all(map(_comes_back, value)) if isinstance(value, list) else not isinstance(value, tuple)


def written(spider: Spider, fields: dict[str, Any]) -> str:
    """Return the fields of a request, with the spider's name, as JSON text."""
    return json.dumps({"spider": spider.name, "request": fields}, allow_nan=False, separators=(",", ":"))


def _read(text: object) -> dict[str, Any]:
    read = json.loads(text) if isinstance(text, str) else None
    if not isinstance(read, dict) or not isinstance(read.get("request"), dict) or "spider" not in read:
        raise ValueError("not a request that a spider has claimed")
    return read
