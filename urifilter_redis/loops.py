"""One client for each event loop and process: asyncio's connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Generic, TypeVar

from urifilter_redis.errors import UriFilterError

__all__ = ["PerLoop", "lent"]

T = TypeVar("T")

# Connections that a forked child has from its parent stay as they are until it ends: to close one here would take it
# out of the selector that both share, and the parent would wait for ever.
_inherited: list[object] = []


class PerLoop(Generic[T]):
    """Makes something in each event loop that asks for it, once; what other loops and processes have is left alone."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._process = os.getpid()
        self._made: MutableMapping[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

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
        made = self._here()
        if loop not in made:
            made[loop] = self._make()
        return made[loop]

    def take(self) -> T | None:
        """Return the running loop's, if it has one, to be closed."""
        return self._here().pop(asyncio.get_running_loop(), None)

    def _here(self) -> MutableMapping[asyncio.AbstractEventLoop, T]:
        if self._process != os.getpid():
            _inherited.extend(self._made.items())
            self._process, self._made = os.getpid(), weakref.WeakKeyDictionary()
        return self._made


def lent(thing: Any, named: str) -> Callable[[], Any]:
    """Return a ``make`` for something that the caller made, and that is for one loop."""
    once = iter([thing])

    def make() -> Any:
        for each in once:
            return each
        text = f"{named} belongs to another event loop or process: open the filter anew here, with one of its own"
        raise UriFilterError(f"{text}, or by the server's address")

    return make
