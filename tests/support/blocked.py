"""Awaited objects as blocking ones, so that one test serves both clients."""

from __future__ import annotations

import asyncio
import inspect
import time

from support.servers import PATIENCE
from urifilter_redis import AsyncUriFilter, UriFilter


class Blocked:
    """An object whose awaitable answers are waited for, all in one event loop; a context manager if the object is."""

    def __init__(self, made, loop: asyncio.AbstractEventLoop) -> None:
        self._made, self._loop = made, loop

    def _wait(self, answer):
        return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer

    def __getattr__(self, name):
        value = getattr(self._made, name)
        if not callable(value):
            return value

        def called(*args, **more):
            answer = self._wait(value(*args, **more))
            return Blocked(answer, self._loop) if hasattr(answer, "__aenter__") else answer

        return called

    def __repr__(self) -> str:
        return repr(self._made)

    def __reduce__(self):
        return self._made.__reduce__()

    def __enter__(self):
        self._wait(self._made.__aenter__())
        return self

    def __exit__(self, *raised):
        self._wait(self._made.__aexit__(*raised))


class Clients:
    """Makes filters, and opens them, with one of the clients; a context manager that closes them."""

    def __init__(self, kind: str) -> None:
        self._loop = asyncio.new_event_loop() if kind == "awaited" else None
        self._made: list = []

    def create(self, name: str, **more):
        return self._note("create", name, more)

    def open(self, name: str, **more):
        return self._note("open", name, more)

    @property
    def awaited(self) -> bool:
        return self._loop is not None

    def wait(self, answer):
        """Wait for an answer, if it is awaitable."""
        return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks that the awaited client has left in its loop."""
        return [] if self._loop is None else [each.get_name() for each in asyncio.all_tasks(self._loop)]

    def let_pass(self, seconds: float) -> None:
        """Wait, and let other threads and tasks run."""
        if self._loop is None:
            time.sleep(seconds)
        else:
            self._loop.run_until_complete(asyncio.sleep(seconds))

    def wait_until(self, condition, what: str) -> None:
        """Poll until ``condition()`` is true, and let other threads and tasks run meanwhile."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(what)
            self.let_pass(0.01)

    def _note(self, method: str, name: str, more: dict):
        if self._loop is None:
            made = getattr(UriFilter, method)(name, **more)
        else:
            made = Blocked(self._loop.run_until_complete(getattr(AsyncUriFilter, method)(name, **more)), self._loop)
        self._made.append(made)
        return made

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for made in self._made:
            made.close()
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
