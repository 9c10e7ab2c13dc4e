"""One client for each event loop and process: asyncio's connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from urifilter_redis.errors import UriFilterError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

__all__ = ["PerLoop", "lent", "stays"]

T = TypeVar("T")

# Connections that a forked child has from its parent stay as they are until it ends: to close one here would take it
# out of the selector that both share, and the parent would wait for ever.
_inherited: list[object] = []


class PerLoop(Generic[T]):
    """Makes something in each event loop that asks for it, once, and closes it when the loop ends.

    What other loops have is left alone, and in a forked child what the parent has.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[object]]) -> None:
        self._make, self._close = make, close
        self._process = os.getpid()
        self._made: dict[asyncio.AbstractEventLoop, T] = {}
        self._kept: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    def get(self) -> T:
        """Return the running loop's.

        Raises:
            UriFilterError: this is a forked child in the middle of its parent's loop.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            text = "no event loop runs here; a forked child must start one of its own (asyncio.run)"
            raise UriFilterError(text) from None
        made = self._made.get(loop) if self._process == os.getpid() else None
        if made is None:
            self._leave_others()
            made = self._made[loop] = self._make()
        return made

    async def kept(self) -> T:
        """Return the running loop's, which is closed when the loop ends; raises as ``get``."""
        thing, loop = self.get(), asyncio.get_running_loop()
        if loop not in self._kept:
            keeper = self._kept[loop] = self._keep(thing)
            await anext(keeper)
        return thing

    async def close(self) -> None:
        """Close the running loop's, if it has one."""
        self._leave_others()
        loop = asyncio.get_running_loop()
        thing, keeper = self._made.pop(loop, None), self._kept.pop(loop, None)
        if keeper is not None:
            await keeper.aclose()
        elif thing is not None:
            await self._close(thing)

    async def _keep(self, thing: T) -> AsyncGenerator[None, None]:
        """Wait until the loop ends: as it does, ``asyncio.run`` closes every generator that has begun."""
        try:
            yield
        finally:
            await self._close(thing)

    def _leave_others(self) -> None:
        """Forget loops that have ended, and a parent's."""
        if self._process != os.getpid():
            _inherited.extend((*self._made.values(), *self._kept.values()))
            self._process, self._made, self._kept = os.getpid(), {}, {}
        for loop in [each for each in list(self._made) if each.is_closed()]:
            self._made.pop(loop, None)
            self._kept.pop(loop, None)


async def stays(_: object) -> None:
    """Close nothing: it is the caller's."""


def lent(thing: Any, named: str) -> Callable[[], Any]:
    """Return a ``make`` for something that the caller made, and that is for one loop."""
    once = iter([thing])

    def make() -> Any:
        for each in once:
            return each
        text = f"{named} belongs to another event loop or process: open the filter anew here, with one of its own"
        raise UriFilterError(f"{text}, or by the server's address")

    return make
