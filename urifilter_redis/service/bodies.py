"""The bodies of requests, read within their limits and checked; and the JSON of answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from urifilter_redis.bloom.encoding import encode_items
from urifilter_redis.errors import BadItem
from urifilter_redis.http_api import read_json, write_json
from urifilter_redis.protocol.claims import LEAST_LEASE, MOST_DELAY, MOST_LEASE, RECLAIMED_A_CALL
from urifilter_redis.service.failures import Refusal, refusal_of
from urifilter_redis.service.heads import header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request

    from urifilter_redis.service.settings import Limits

__all__ = [
    "NAME",
    "NAME_PATTERN",
    "Answer",
    "Items",
    "ItemsOf",
    "ToBeat",
    "ToClaim",
    "ToCommit",
    "ToReclaim",
    "ToRelease",
    "check_items",
    "parse",
    "read",
    "receive",
    "tokens_in",
    "whole",
]

M = TypeVar("M", bound=BaseModel)

#: From so many bytes on a body is parsed with the garbage collector held back: JSON makes no cycles, and the search
#: takes most of the time of many lists.
COLLECTED = 1 << 14

#: The form of a filter's name; see ``keys.check_name``.
NAME = "[A-Za-z0-9._-]{1,64}"
NAME_PATTERN = f"^{NAME}$"

#: The search for a token is bounded, so that it costs next to nothing: it tries so many places from the start of a body
#: and from its end, takes tokens of so many bytes, and skips so many blanks before one.
TOKEN_PLACES = 16
TOKEN_BYTES = 1024
BLANKS = 100

_FIELD = b'"access_token"'
_BLANK = rb"[ \t\r\n]{0,%d}" % BLANKS
_TOKEN = re.compile(_FIELD + _BLANK + b":" + _BLANK + rb'("(?:[^"\\]|\\.){1,%d}")' % TOKEN_BYTES)

_STRICT = ConfigDict(extra="forbid", strict=True)
_CLOSE = {"Connection": "close"}

Uris = Annotated[list[Any], Field(description="items: URIs, or any other JSON values")]


def whole(value: object) -> object:
    """Return a number in JSON's sense, in which 1.0 is 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_AGE = "ring: look only at so many of the newest slices"
Age = Annotated[int, Field(ge=1, description=_AGE), BeforeValidator(whole)] | None


Place = Annotated[int, Field(ge=0), BeforeValidator(whole)]


class Items(BaseModel):
    """Items for a command."""

    model_config = _STRICT

    URI_list: Uris
    max_age: Age = None


class ItemsOf(BaseModel):
    """A filter and items; the new items are wanted."""

    model_config = _STRICT

    filter_typeid: Annotated[str, Field(pattern=NAME_PATTERN, description="the filter's name")]
    URI_list: Uris
    access_token: Annotated[str | None, Field(description="or send it as Authorization: Bearer")] = None


Holder = Annotated[
    str, Field(pattern="^[0-9A-Fa-f]{16}$", description="the holder: 16 hex digits that its crawler has drawn")
]
_LEASE = "seconds for which the holder lives without another request; null: 60, more for a filter of many shards"
Lease = Annotated[float, Field(ge=LEAST_LEASE, le=MOST_LEASE, description=_LEASE)] | None
_PAYLOADS = "a payload for each item, any JSON value of at most 64 KiB; without them each item is its own"
_BASE64 = "the positions of the items that are base64 of bytes, as `reclaim` answers them; each once"


class ToClaim(BaseModel):
    """Items to be taken in hand."""

    model_config = _STRICT

    URI_list: Uris
    payloads: Annotated[list[Any] | None, Field(description=_PAYLOADS)] = None
    holder: Holder
    lease: Lease = None


class ToCommit(BaseModel):
    """Items to be made final."""

    model_config = _STRICT

    URI_list: Uris
    base64: Annotated[list[Place], FailFast(), Field(description=_BASE64)] = []
    holder: Holder | None = None
    lease: Lease = None


class ToRelease(ToCommit):
    """Items to be given back."""

    delay: Annotated[float, Field(ge=0, le=MOST_DELAY, description="seconds until they are offered again")] = 0.0
    failed: Annotated[bool, Field(description="count a failure of each item")] = False


class ToReclaim(BaseModel):
    """The wish for items of dead holders, and for those that are due again."""

    model_config = _STRICT

    holder: Holder
    lease: Lease = None
    limit: Annotated[
        int, Field(ge=0, le=RECLAIMED_A_CALL, description="the most items; 0: only look"), BeforeValidator(whole)
    ] = RECLAIMED_A_CALL


class ToBeat(BaseModel):
    """A sign of life."""

    model_config = _STRICT

    holder: Holder
    lease: Lease = None


class Answer(JSONResponse):
    """JSON in ASCII, which carries any text that an item may have."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the answer."""
        return write_json(content)


async def read(request: Request, kind: type[M], limits: Limits) -> M:
    """Wait for the body of a request, and read it; its sender has shown a token already.

    Raises:
        Refusal: the errors of ``receive`` and ``parse``.
    """
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


def parse(data: bytes, kind: type[M]) -> M:
    """Read a body as JSON of a kind.

    Raises:
        Refusal: the body is not JSON, or not of this kind.
    """
    if len(data) < COLLECTED:
        return _parsed(data, kind)
    collects = gc.isenabled()
    gc.disable()
    try:
        return _parsed(data, kind)
    finally:
        if collects:
            gc.enable()


def _parsed(data: bytes, kind: type[M]) -> M:
    try:
        content = read_json(data)
    except ValueError as error:
        raise Refusal("bad_json", f"the body is not JSON: {error}") from None
    if isinstance(content, dict) and not content.keys() <= kind.model_fields.keys():
        wrong = next(name for name in content if name not in kind.model_fields)
        raise Refusal("bad_request", f"there is no field {wrong[:40]!r}; there are {', '.join(kind.model_fields)}")
    try:
        return kind.model_validate(content)
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
