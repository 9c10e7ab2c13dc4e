"""One client for each event loop and process, as asyncio's connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from urifilter_redis.errors import UriFilterError

T = TypeVar("T")

# Connections that a forked child has from its parent stay as they are until it ends: to close one here would take it
# out of the selector that both share, and the parent would wait for ever.
_inherited: list[object] = []


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop that runs.

    Raises:
        UriFilterError: none of asyncio runs here: this is trio's, or a forked child in the middle of its parent's loop.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        text = "no event loop of asyncio runs here: call it under asyncio.run, and not under trio"
        raise UriFilterError(f"{text}; a forked child must start a loop of its own") from None


class PerLoop(Generic[T]):
    """Makes one client for each event loop that asks for one, and closes it when the loop ends.

    The clients of other loops are left alone, and in a forked child those of the parent.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[object]]) -> None:
        self._make, self._close = make, close
        self._process = os.getpid()
        self._made: dict[asyncio.AbstractEventLoop, T] = {}
        self._kept: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    def get(self) -> T:
        """Return the running loop's client.

        Raises:
            UriFilterError: see ``running_loop``.
        """
        loop = running_loop()
        made = self._made.get(loop) if self._process == os.getpid() else None
        if made is None:
            self._forget_others()
            made = self._made[loop] = self._make()
        return made

    async def kept(self) -> T:
        """Return the running loop's client, which is closed when the loop ends. The errors are those of ``get``."""
        client, loop = self.get(), asyncio.get_running_loop()
        if loop not in self._kept:
            keeper = self._kept[loop] = self._keep(client)
            await anext(keeper)
        return client

    async def close(self) -> None:
        """Close the running loop's client, if it has one."""
        self._forget_others()
        loop = asyncio.get_running_loop()
        client, keeper = self._made.pop(loop, None), self._kept.pop(loop, None)
        if keeper is not None:
            await keeper.aclose()
        elif client is not None:
            await self._close(client)

    async def _keep(self, client: T) -> AsyncGenerator[None, None]:
        """Wait until the loop ends: as it does, ``asyncio.run`` closes every generator that has begun."""
        try:
            yield
        finally:
            await self._close(client)

    def _forget_others(self) -> None:
        """Forget the clients of loops that have ended, and of a parent process."""
        if self._process != os.getpid():
            _inherited.extend((*self._made.values(), *self._kept.values()))
            self._process, self._made, self._kept = os.getpid(), {}, {}
        for loop in [each for each in list(self._made) if each.is_closed()]:
            self._made.pop(loop, None)
            self._kept.pop(loop, None)


def lent(client: Any) -> Callable[[], Any]:
    """Return a ``make`` for a client that the caller made, and that is for one loop."""
    once = iter([client])

    def make() -> Any:
        for each in once:
            return each
        text = "the redis.asyncio.Redis that was given belongs to another event loop or process: open the filter anew"
        raise UriFilterError(f"{text} here, with one of its own, or by the server's address")

    return make
