"""The pace of wrong tokens: the answer to an address that sends too many is held back."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from urifilter_redis.service.addresses import client_of, group_of
from urifilter_redis.service.failures import Refusal
from urifilter_redis.service.logs import Seldom

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.requests import Request

    from urifilter_redis.service.addresses import Network

__all__ = ["LONGEST_HOLD", "Guesses"]

log = logging.getLogger("urifilter_redis.service")

#: Addresses that are remembered; the one whose last wrong token is the oldest is forgotten.
ADDRESSES = 1024

#: Seconds for which an answer is held back at most.
LONGEST_HOLD = 5.0

#: Answers that are held back at once.
MOST_HELD = 100

#: Seconds in which an address may send the wrong tokens that it has free.
WINDOW = 60.0


class Guesses:
    """The wrong tokens of each address.

    An address may send some in a minute. From then on their answers come at that pace. Right tokens are not counted,
    and nothing is refused for the wrong ones of others behind the same proxy.

    Args:
        a_minute: the wrong tokens of one address whose answers are not held back.
        clock: returns the time in seconds.
    """

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace, self._clock = WINDOW / a_minute, clock
        self._paid: dict[str, float] = {}  # by address, when it will have as many free as at first
        self._held: list[float] = []  # until when answers are held back
        self._seldom = Seldom()

    def refusal(self, request: Request, count: int, proxies: Collection[Network]) -> Refusal:
        """Return the answer to a request that has shown no right token.

        Args:
            request: the request.
            count: how many wrong tokens it has brought; 0: none at all.
            proxies: the networks of the proxies that are trusted.
        """
        text = "send a token: Authorization: Bearer TOKEN, or access_token in the body where that has one"
        refusal = Refusal("unauthorized", text, headers={"WWW-Authenticate": "Bearer"})
        if not count:
            return refusal
        address = group_of(client_of(request.scope, proxies))
        hold = self.book(address, count)
        if hold and self._seldom.passes(address):
            log.warning("%s sends many wrong tokens: the answers to them are held back", address)
        if hold <= LONGEST_HOLD:
            refusal.hold = hold
            return refusal
        headers = {"Retry-After": str(math.ceil(hold - LONGEST_HOLD)), "Connection": "close"}
        text = f"{address} sends too many wrong tokens, and this one is wrong, too: see that all crawlers have theirs"
        return Refusal("too_many_wrong_tokens", text, headers=headers)

    def book(self, address: str, count: int) -> float:
        """Book wrong tokens of an address.

        Args:
            address: the address; see ``group_of``.
            count: how many tokens one request has brought.

        Returns:
            The seconds to hold the answer back. Over ``LONGEST_HOLD``: it is too many, nothing was booked, and the
            address may try again when the rest is over.
        """
        now = self._clock()
        self._held = [until for until in self._held if until > now]
        before = max(self._paid.pop(address, now), now)
        paid = before + count * self._pace
        hold = max(0.0, paid - now - WINDOW)
        if hold and len(self._held) >= MOST_HELD:
            hold += LONGEST_HOLD
        self._paid[address] = paid if hold <= LONGEST_HOLD else before
        if len(self._paid) > ADDRESSES:
            del self._paid[next(iter(self._paid))]
        if 0 < hold <= LONGEST_HOLD:
            self._held.append(now + hold)
        return hold
