"""What a request says: its headers, its client, its query, and its body, read within limits and checked."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from urifilter_redis.bloom.encoding import encode_items
from urifilter_redis.errors import BadItem
from urifilter_redis.http_api import read_json
from urifilter_redis.service.errors import Refusal, refusal_of
from urifilter_redis.service.settings import Limits

M = TypeVar("M", bound=BaseModel)

#: From so many bytes on a body is parsed with the garbage collector held back: JSON makes no cycles, and the search
#: takes most of the time of many lists.
COLLECTED = 1 << 14

#: The search for a token is bounded, so that it costs next to nothing: it tries so many places from the start of a body
#: and from its end, takes tokens of so many bytes, and skips so many blanks before one.
TOKEN_PLACES = 16
TOKEN_BYTES = 1024
BLANKS = 100

_FIELD = b'"access_token"'
_BLANK = rb"[ \t\r\n]{0,%d}" % BLANKS
_TOKEN = re.compile(_FIELD + _BLANK + b":" + _BLANK + rb'("(?:[^"\\]|\\.){1,%d}")' % TOKEN_BYTES)

_CLOSE = {"Connection": "close"}


async def read(request: Request, kind: type[M], limits: Limits) -> M:
    """Receive and parse the body of a request whose sender has shown a token; raises what these raise."""
    return parse(await receive(request, limits), kind)


async def receive(request: Request, limits: Limits) -> bytes:
    """Wait for the body of a request.

    Raises:
        Refusal: the body is too large, too slow, cut off, or compressed.
    """
    if header(request.scope, "Content-Encoding", "identity").lower() != "identity":
        raise Refusal("unsupported_encoding", "send the body as it is, not compressed", headers=_CLOSE)
    try:
        async with asyncio.timeout(limits.seconds):
            return await _receive(request, limits.body)
    except TimeoutError:
        text = f"the body did not arrive within {limits.seconds:g} s: send less at a time"
        raise Refusal("too_slow", text, headers=_CLOSE) from None
    except ClientDisconnect:
        raise Refusal("bad_json", "the connection ended before the body did", headers=_CLOSE) from None


def tokens_in(data: bytes) -> Iterator[str]:
    """Find the texts that may be the access token in a body, without parsing it.

    A body that anybody may have sent is not parsed before its token is known: parsing can cost a lot of time.
    """
    for place in _places(data):
        if found := _TOKEN.match(data, place):
            with contextlib.suppress(ValueError):
                yield json.loads(found[1].decode())


def _places(data: bytes) -> Iterator[int]:
    at = -1
    for _ in range(TOKEN_PLACES):
        if (at := data.find(_FIELD, at + 1)) < 0:
            return
        yield at
    at = len(data)
    for _ in range(TOKEN_PLACES):
        if (at := data.rfind(_FIELD, 0, at)) < 0:
            return
        yield at


def query(request: Request, kind: type[M]) -> M:
    """Read the query of a request, as ``read`` does its body.

    Raises:
        Refusal: it is not of this kind.
    """
    return _checked(dict(request.query_params), kind, kind.model_validate_strings)


def parse(data: bytes, kind: type[M]) -> M:
    """Read a body as JSON of a kind.

    Raises:
        Refusal: the body is not JSON, or not of this kind.
    """
    holds_back = len(data) >= COLLECTED and gc.isenabled()
    if holds_back:
        gc.disable()
    try:
        content = read_json(data)
    except ValueError as error:
        raise Refusal("bad_json", f"the body is not JSON: {error}") from None
    else:
        return _checked(content, kind, kind.model_validate)
    finally:
        if holds_back:
            gc.enable()


def _checked(content: Any, kind: type[M], read_as: Callable[[Any], M]) -> M:
    if isinstance(content, dict) and not content.keys() <= kind.model_fields.keys():
        wrong = next(name for name in content if name not in kind.model_fields)
        raise Refusal("bad_request", f"there is no field {wrong[:40]!r}; there are {', '.join(kind.model_fields)}")
    try:
        return read_as(content)
    except ValidationError as error:
        wrong = ((".".join(map(str, each["loc"])) or "body", each["msg"]) for each in error.errors())
        lines = (f"{where}: {message.removeprefix('Value error, ')}" for where, message in wrong)
        raise Refusal("bad_request", "; ".join(lines)) from None


async def _receive(request: Request, most: int) -> bytes:
    if int(header(request.scope, "Content-Length", "0")) > most:
        raise _too_large(most)
    message = await request.receive()
    data: bytes | bytearray = message.get("body", b"")
    while len(data) <= most and message["type"] != "http.disconnect":
        if not message.get("more_body", False):
            return bytes(data)
        message = await request.receive()
        if not isinstance(data, bytearray):
            data = bytearray(data)
        data += message.get("body", b"")
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    raise _too_large(most)


def _too_large(most: int) -> Refusal:
    return Refusal("body_too_large", f"a body has at most {most:,} bytes: send less at a time", headers=_CLOSE)


def check_items(items: Sequence[Any], limits: Limits) -> None:
    """Check that items can be filtered.

    Raises:
        Refusal: there are too many items, or some cannot be filtered, or some are too long.
    """
    if len(items) > limits.items:
        raise Refusal(
            "too_many_items", f"a request has at most {limits.items:,} items, not {len(items):,}: send several"
        )
    try:
        sizes = list(map(len, encode_items(items)))
    except BadItem as error:
        raise refusal_of(error) from None
    long = [index for index, size in enumerate(sizes) if size > limits.item]
    if long:
        raise Refusal("item_too_long", f"an item has at most {limits.item:,} bytes", more={"indices": long})


#: The key of a request's scope under which its headers are kept.
_HEADERS = "urifilter.headers"


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """Return the headers of a request by their names in lower case; of several with one name the first counts."""
    found: Mapping[bytes, bytes] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = dict(reversed(scope["headers"]))
    return found


def header(scope: Scope, name: str, default: str = "") -> str:
    """Return the text of a header; ``default`` if the request does not have it."""
    found = headers_of(scope).get(name.lower().encode())
    return default if found is None else found.decode("latin-1")


#: The header in which each proxy adds the address that it was asked from.
FORWARDED_FOR = "X-Forwarded-For"

#: The newest entries of that header that are read; a chain of proxies is shorter.
MOST_HOPS = 20

#: One customer has at least so many leading bits of an IPv6 address, and so 2 ** 64 addresses.
CUSTOMER_BITS = 64

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def peer_of(scope: Scope) -> str:
    """Return the address at the other end of the connection; empty if it is not over IP."""
    return (scope.get("client") or ("",))[0]


def client_of(scope: Scope, proxies: Collection[Network]) -> str:
    """Return the address of a request's client, behind any of the networks of proxies that are trusted.

    The entries of X-Forwarded-For count from the last one on for as long as trusted proxies have added them: all
    before that may be made up.
    """
    client = peer_of(scope)
    if not proxies or not is_in(client, proxies):
        return client
    hops = ",".join(Headers(scope=scope).getlist(FORWARDED_FOR)).rsplit(",", MOST_HOPS)[-MOST_HOPS:]
    for hop in reversed(hops):
        found = _read(_without_port(hop.strip()))
        if found is None:
            break
        client = str(found)
        if not is_in(client, proxies):
            break
    return client


def is_in(address: str, networks: Collection[Network]) -> bool:
    """Whether an address belongs to one of some networks; what is no address belongs to none."""
    found = _read(address)
    return found is not None and any(found in network for network in networks)


def group_of(address: str) -> str:
    """Return the addresses that are counted as one: an IPv4 address, or the IPv6 network of one customer."""
    found = _read(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, CUSTOMER_BITS), strict=False))
    return "unknown" if found is None else str(found)


def _read(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; an IPv4 address that came over an IPv6 socket is an IPv4 address; None: the text is none."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])  # without the network card's name
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _without_port(text: str) -> str:
    """Take off the port that some proxies add: ``192.0.2.1:80``, ``[2001:db8::1]:80``."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
