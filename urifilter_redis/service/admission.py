"""Whose a request is, and when it may run."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from urifilter_redis.service import tokens
from urifilter_redis.service.failures import Refusal
from urifilter_redis.service.gate import TOKEN
from urifilter_redis.service.guesses import Guesses
from urifilter_redis.service.heads import header
from urifilter_redis.service.load import LOAD
from urifilter_redis.service.usage import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from urifilter_redis.service.settings import ServiceSettings
    from urifilter_redis.service.tokens import Token

__all__ = ["Admission"]


class Admission:
    """The tokens of one worker, and the turns of their requests.

    Attributes:
        settings: the settings, which ``renew`` replaces.
        usage: the use of tokens, and the refusals.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings, self.usage = settings, Usage.of_service()
        self._tokens = [each.token() for each in settings.tokens]
        self._guesses = Guesses(settings.limits.wrong_tokens)
        self._slots: dict[str, asyncio.Semaphore] = {}

    def renew(self, settings: ServiceSettings) -> None:
        """Take settings that were read again; a request under way keeps the token that it has shown."""
        self.settings, self._tokens = settings, [each.token() for each in settings.tokens]
        names = {each.name for each in settings.tokens}
        self._slots = {name: slots for name, slots in self._slots.items() if name in names}

    def whose(self, request: Request, *given: str) -> Token:
        """Return the token of a request.

        Args:
            request: the request; the token of its header counts, if it has one.
            given: texts from the body that may be a token; the first that is one counts.

        Raises:
            Refusal: there is no token, or a wrong one.
        """
        if not self._tokens:
            return tokens.EVERYTHING
        kind, _, sent = header(request.scope, "Authorization").partition(" ")
        offered = (sent.strip(),) if kind.lower() == "bearer" else given
        token = next(filter(None, (tokens.find(self._tokens, each) for each in offered)), None)
        if token is None:
            raise self._guesses.refusal(request, sum(map(bool, offered)), self.settings.trusted_proxies)
        request.scope[TOKEN] = token.name
        self.usage.use(token.name)
        return token

    @contextlib.asynccontextmanager
    async def allowed(self, token: Token, filter_name: str, *, writes: bool, acts: bool = False) -> AsyncIterator[None]:
        """Let a request run once fewer than ``limits.requests`` of its token are running.

        Raises:
            Refusal: the token may not do this, or the request has waited too long for others of the token.
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
