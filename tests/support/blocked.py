"""The four clients, all blocking, so that one test serves them: of the library and of the SDK, each awaited, too."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import ssl
import time
from typing import Any

from support.servers import PATIENCE
from urifilter_redis import AsyncUriFilter, UriFilter
from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPIClient

#: The clients of the library, and those of the service.
LIBRARY = ("blocking", "asyncio")
SDK = ("sdk", "asyncio-sdk")

#: Of no certificates: to read those of the machine takes longer than most tests, and no test asks for them.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


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


class Named:
    """A client of the SDK whose calls are about one filter, as those of the library are."""

    def __init__(self, api, name: str) -> None:
        self._api, self._name = api, name

    def __getattr__(self, name):
        value = getattr(self._api, name)
        return functools.partial(value, self._name) if callable(value) and name != "close" else value

    def __repr__(self) -> str:
        return repr(self._api)


class Clients:
    """Makes filters, and opens them, with one of the four clients; a context manager that closes them.

    Attributes:
        kind: one of ``LIBRARY`` and ``SDK``.
        made: the clients as they are, and not blocking.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.is_sdk, self.awaited = kind, kind in SDK, kind.startswith("asyncio")
        self._loop = asyncio.new_event_loop() if self.awaited else None
        self.made: list[Any] = []
        self._opened: list[Any] = []

    def create(self, name: str, **more):
        return self._note((AsyncUriFilter if self.awaited else UriFilter).create(name, **more))

    def open(self, name: str = "news", *, redis: Any, **more):
        """Open a filter; for the SDK ``redis`` is the address of the service."""
        if not self.is_sdk:
            return self._note((AsyncUriFilter if self.awaited else UriFilter).open(name, redis=redis, **more))
        kind = AsyncFilterAPIClient if self.awaited else FilterAPIClient
        return self._note(kind(redis, verify=_NO_CERTIFICATES, **more), name)

    def take(self, made):
        """Take an object of this kind that was made otherwise, as from pickle, and close it with the others."""
        return self._note(made)

    def _note(self, made, *name: str):
        self.made.append(self.wait(made))
        opened = Named(self.made[-1], *name) if name else self.made[-1]
        self._opened.append(Blocked(opened, self._loop) if self.awaited else opened)
        return self._opened[-1]

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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self._opened:
            each.close()
        if self._loop is not None:
            for task in asyncio.all_tasks(self._loop):  # those that beat for claims that nobody has closed
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
