"""The token of each request, the pace of wrong tokens, and how many requests of a token run at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection

from starlette.requests import Request

from urifilter_redis.errors import UriFilterError
from urifilter_redis.service import tokens
from urifilter_redis.service.errors import Refusal, refusal_of
from urifilter_redis.service.logs import Seldom, without
from urifilter_redis.service.middleware import TOKEN
from urifilter_redis.service.protocol import LOAD
from urifilter_redis.service.requests import Network, client_of, group_of, header
from urifilter_redis.service.settings import ServiceSettings
from urifilter_redis.service.tokens import Token
from urifilter_redis.service.usage import Usage

log = logging.getLogger("urifilter_redis.service")

#: Addresses that are remembered; the one whose last wrong token is the oldest is forgotten.
ADDRESSES = 1024

#: Seconds for which an answer is held back at most.
LONGEST_HOLD = 5.0

#: Answers that are held back at once.
MOST_HELD = 100

#: Seconds in which an address may send the wrong tokens that it has free.
WINDOW = 60.0


class Admission:
    """Finds the token of each request, and lets so many requests of a token run at once as ``limits.requests`` says."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings, self.usage = settings, Usage.of_service()
        self._tokens = [each.token() for each in settings.tokens]
        self._wrong = WrongTokens(settings.limits.wrong_tokens)
        self._slots: dict[str, asyncio.Semaphore] = {}

    def renew(self, settings: ServiceSettings) -> None:
        """Take settings that were read again; a request under way keeps the token that it has shown."""
        self.settings, self._tokens = settings, [each.token() for each in settings.tokens]
        names = {each.name for each in settings.tokens}
        self._slots = {name: slots for name, slots in self._slots.items() if name in names}

    def whose(self, request: Request, *given: str) -> Token:
        """Return the token of a request's header, or the first of the texts ``given`` from its body that is a token.

        Raises:
            Refusal: there is no token, or a wrong one.
        """
        if not self._tokens:
            return tokens.EVERYTHING
        kind, _, sent = header(request.scope, "Authorization").partition(" ")
        offered = (sent.strip(),) if kind.lower() == "bearer" else given
        token = next(filter(None, (tokens.find(self._tokens, each) for each in offered)), None)
        if token is None:
            raise self._wrong.refusal(request, sum(map(bool, offered)), self.settings.trusted_proxies)
        request.scope[TOKEN] = token.name
        self.usage.use(token.name)
        return token

    def knows(self, filter_name: str) -> bool:  # noqa: ARG002 - for the class below
        """Whether there is such a filter. A name of none may be a secret in the wrong place, and is in no log."""
        return False

    @contextlib.asynccontextmanager
    async def allowed(self, token: Token, filter_name: str, *, writes: bool, acts: bool = False) -> AsyncIterator[None]:
        """Let a request run once fewer than ``limits.requests`` of its token are running.

        Raises:
            Refusal: the token may not do this, or the request has waited too long for others of the token; or an error
                of the request itself, with a text for the log that has no name of a filter that there is not.
        """
        if not token.may_use(filter_name):
            raise Refusal("forbidden", f"this token is not for filter {filter_name!r}")
        if writes and not token.may_write:
            raise Refusal("forbidden", "this token may only read")
        if acts and not token.may_act:
            raise Refusal("forbidden", 'this is for tokens with access = "admin"')
        limits = self.settings.limits
        slots = self._slots.get(token.name)
        if slots is None:
            slots = self._slots[token.name] = asyncio.Semaphore(limits.requests)
        if slots.locked():
            await self._wait_for(slots)
        else:
            await slots.acquire()  # at once
        try:
            yield
        except (Refusal, UriFilterError) as error:
            refusal = refusal_of(error) if isinstance(error, UriFilterError) else error
            if refusal.detail and not self.knows(filter_name):
                refusal.detail = without(refusal.detail, filter_name)
            raise refusal from None
        finally:
            slots.release()

    async def _wait_for(self, slots: asyncio.Semaphore) -> None:
        limits = self.settings.limits
        LOAD.waiting += 1
        try:
            async with asyncio.timeout(limits.wait):
                await slots.acquire()
        except TimeoutError:
            text = (
                f"{limits.requests} requests of this token are running, and this one has waited for {limits.wait:g} s"
            )
            raise Refusal("too_many_requests", f"{text}: send less at once, or more items in one") from None
        finally:
            LOAD.waiting -= 1


class WrongTokens:
    """Holds back the answers to wrong tokens of an address that sends more than ``a_minute``.

    They come at that pace then. Right tokens are not counted, and are answered beside the wrong ones of others behind
    the same proxy.
    """

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace, self._clock = WINDOW / a_minute, clock
        self._paid: dict[str, float] = {}  # by address, when it will have as many free as at first
        self._held: list[float] = []  # until when answers are held back
        self._seldom = Seldom()

    def refusal(self, request: Request, count: int, proxies: Collection[Network]) -> Refusal:
        """Return the answer to a request with ``count`` wrong tokens and no right one."""
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
        """Book wrong tokens of an address of ``group_of``, and return the seconds to hold their answer back.

        If that is over ``LONGEST_HOLD``, nothing was booked, and the address may try again after the rest.
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
