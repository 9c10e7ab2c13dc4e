"""Requests as JSON texts: claims keep them in the filter for other crawls."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from scrapy import Request
from scrapy.spiders import Spider
from scrapy.utils.request import request_from_dict

from urifilter_redis.bloom.encoding import MOST_BYTES
from urifilter_redis.engine.holdings import Claim
from urifilter_redis.scrapy.options import META

#: What is kept of a request that cannot be kept whole: all that is sent, or what makes it this request.
_SENT = ("method", "headers", "body", "cookies"), ("method", "body")

#: The other fields that a spider gives to a request.
_OTHERS = ("callback", "errback", "meta", "cb_kwargs")


def kept_of(request: Request, spider: Spider, *, waits: bool = False) -> tuple[str | None, str]:
    """Return what others get of a request, and what is left out of it: nothing, if it is kept whole.

    A request that cannot be kept whole is kept as it is sent. If that is too long, too, others get its method, address
    and body, or nothing: a request without its body would be another one. ``waits`` says that it is kept for the next
    crawl of the spider; see ``waits_for``.
    """
    try:
        return text_of(request, spider, waits=waits), ""
    except ValueError as error:
        why = error
    lost = [name for name in _OTHERS if getattr(request, name)]
    for names in _SENT:
        lost += [name for name in ("headers", "cookies") if name not in names and getattr(request, name)]
        try:
            sent = Request(request.url, **{name: getattr(request, name) for name in names})
            text = text_of(sent, spider, waits=waits)
        except ValueError:
            continue
        return text, f"{', '.join(lost)} ({why})"
    return None, f"all of it ({why})"


def text_of(request: Request, spider: Spider, *, waits: bool = False) -> str:
    """Return a request, with the spider's name, as JSON text.

    Raises:
        ValueError: a callback is no method of the spider, a value is no JSON or nested too deep, or the text has more
            than 64 KiB.
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
        written = {"spider": spider.name, "request": fields} | ({"waits": True} if waits else {})
        text = json.dumps(written, allow_nan=False, separators=(",", ":"))
        is_whole = all(_comes_back(fields.get(name)) for name in ("meta", "cb_kwargs", "cookies", "flags"))
    except (TypeError, RecursionError) as error:  # the answer of a site, passed on in meta, may have any depth
        raise ValueError(str(error)) from None
    if not is_whole:
        raise ValueError("a value that JSON has no kind for, or a key that is no text, would come back as another one")
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return text


def url_of(claim: Claim) -> str:
    """Return the address of a claim's request; what it is of, if it is no payload of this module."""
    try:
        return str(_read(claim.payload)["request"].get("url"))
    except ValueError:
        return str(claim.item)


def waits_for(text: object) -> str | None:
    """Return the name of the spider for whose next crawl a request was kept; None: it was claimed, or is no request."""
    try:
        read = _read(text)
    except ValueError:
        return None
    return str(read["spider"]) if read.get("waits") is True else None


def to_request(text: object, spider: Spider) -> Request | None:
    """Return the request of a payload, with the spider's own methods as callbacks; None if it is another spider's.

    Raises:
        ValueError: it is no payload of this module, or the spider has no such method.
    """
    read = _read(text)
    if str(read["spider"]) != spider.name:
        return None
    fields = dict(read["request"])
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
    kind = type(value)  # and no subclass: an enum would come back as a number, and a Counter as a dict
    if kind is dict:
        return all(type(name) is str and _comes_back(each) for name, each in value.items())
    return all(map(_comes_back, value)) if kind is list else kind in {str, int, float, bool, type(None)}


def _read(text: object) -> dict[str, Any]:
    try:
        read = json.loads(text) if isinstance(text, str) else None
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(read, dict) or not isinstance(read.get("request"), dict) or "spider" not in read:
        raise ValueError("not a request that a spider has claimed")
    return read
