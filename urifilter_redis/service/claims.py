"""Requests about claims: the flows that they ask for, and the answers in the terms of JSON."""

from __future__ import annotations

import base64
import binascii
import re
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from urifilter_redis.bloom.encoding import encode_item
from urifilter_redis.engine.holdings import Holdings
from urifilter_redis.flows import claims, items, reclaim
from urifilter_redis.protocol.claims import NO_HOLDER
from urifilter_redis.service.bodies import Items, ToBeat, ToClaim, ToCommit, ToReclaim, ToRelease
from urifilter_redis.service.failures import Refusal
from urifilter_redis.service.tokens import EVERYTHING, bound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from urifilter_redis.engine.holdings import Claim, Outstanding
    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.protocol.call_ids import CallKey
    from urifilter_redis.protocol.claims import Holding
    from urifilter_redis.service.tokens import Token

    OfItems: TypeAlias = Items | ToClaim | ToCommit

__all__ = ["BODIES", "beat", "content_of", "flow_of", "items_in", "take"]

#: The body of each command about items.
BODIES: dict[str, type[Items | ToClaim | ToCommit]] = {
    "insert": Items,
    "contains": Items,
    "forget": Items,
    "remove": Items,
    "claim": ToClaim,
    "commit": ToCommit,
    "release": ToRelease,
}

#: Two characters in Python that JSON cannot tell from one beyond U+FFFF.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def items_in(asked: OfItems) -> Sequence[Any]:
    """Return the items of a body.

    Raises:
        Refusal: a position of ``base64`` is none of an item or comes twice, or its item is no base64.
    """
    places = asked.base64 if isinstance(asked, ToCommit) else []
    if not places:
        return asked.URI_list
    if len(set(places)) < len(places):  # a long item of a million positions would keep the worker busy for hours
        raise Refusal("bad_request", "base64: a position comes twice")
    found = list(asked.URI_list)
    for place in places:
        try:
            found[place] = base64.b64decode(asked.URI_list[place], validate=True)
        except IndexError:
            raise Refusal("bad_request", f"base64: there is no item {place}") from None
        except (TypeError, ValueError, binascii.Error):
            raise Refusal("bad_item", f"item {place} is no base64", more={"indices": [place]}) from None
    return found


def flow_of(
    command: str, asked: OfItems, given: Sequence[Any], token: Token
) -> Callable[[Session, CallKey | None], Flow[list[int]]]:
    """Return the flow of a command about items.

    Args:
        command: one of ``BODIES``.
        asked: the body.
        given: its items.
        token: the token of the request.

    Raises:
        Refusal: the payloads are not as many as the items, or a release names no holder and the service has tokens.
    """
    if isinstance(asked, ToClaim):
        return _claim(asked, given, token)
    if isinstance(asked, ToRelease):
        if asked.holder is None and token is not EVERYTHING:
            text = "a release without a holder gives back what others have in hand: name the holder"
            raise Refusal("forbidden", text)
        return lambda session, key: claims.release(
            session, given, _holding(session, asked, token), delay=asked.delay, failed=asked.failed, call_key=key
        )
    if isinstance(asked, ToCommit):
        return lambda session, key: claims.commit(session, given, _holding(session, asked, token), call_key=key)
    return lambda session, key: items.answer(session, command, given, asked.max_age, call_key=key)


def take(asked: ToReclaim, token: Token, key: CallKey | None) -> Callable[[Session], Flow[dict[str, Any]]]:
    """Return the flow that takes items in hand, and makes the answer."""

    def flow(session: Session) -> Flow[dict[str, Any]]:
        holding = _holding(session, asked, token)
        holdings, found = Holdings(holding.lease / 1000, holding.holder, pauses=False), []
        if asked.limit:
            found = yield from reclaim.reclaim_round(session, holdings, reclaim.Round(asked.limit, key))
        else:
            yield from reclaim.outstanding(session, holdings)
        return content_of(found, None if holdings.partial else holdings.outstanding())

    return flow


def beat(asked: ToBeat, token: Token) -> Callable[[Session], Flow[int]]:
    """Return the flow that beats in all shards; it returns how many items the holder has."""
    return lambda session: reclaim.beat_all(session, _holding(session, asked, token))


def content_of(found: Sequence[Claim], outstanding: Outstanding | None) -> dict[str, Any]:
    """Return the answer to a request that takes items in hand."""
    taken = [
        {
            **_shown("item", each.item),
            **_shown("payload", each.payload),
            "failures": each.failures,
            "lapses": each.lapses,
        }
        for each in found
    ]
    others = None if outstanding is None else {"others": outstanding.others, "due": outstanding.due}
    return {"claims": taken, "total": len(taken), "outstanding": others}


def _claim(asked: ToClaim, given: Sequence[Any], token: Token) -> Callable[[Session, CallKey | None], Flow[list[int]]]:
    payloads = asked.payloads
    if payloads is None:
        return lambda session, key: claims.claim(session, _holding(session, asked, token), given, call_key=key)
    if len(payloads) != len(given):
        raise Refusal("bad_request", f"payloads: {len(payloads):,} for {len(given):,} items")
    pairs = list(zip(given, payloads, strict=True))
    return lambda session, key: claims.claim(
        session, _holding(session, asked, token), pairs, key=itemgetter(0), payload=itemgetter(1), call_key=key
    )


def _holding(session: Session, asked: ToClaim | ToCommit | ToReclaim | ToBeat, token: Token) -> Holding:
    """Return the holder of a request in the terms of the scripts; see ``tokens.bound``."""
    if asked.holder is None:
        return NO_HOLDER
    return claims.holding_of(session, bound(token, asked.holder), asked.lease)


def _shown(name: str, value: object) -> dict[str, Any]:
    """Return a field with an item or payload: bytes as text, if they are UTF-8, because this text is the same item."""
    text = value
    if isinstance(value, bytes):
        try:
            text = value.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            text = value
    if isinstance(text, bytes) or (isinstance(text, str) and _PAIR.search(text)):
        return {f"{name}_base64": base64.b64encode(encode_item(value)).decode()}
    return {name: text}
