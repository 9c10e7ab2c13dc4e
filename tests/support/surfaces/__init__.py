"""The six ways to ask about a filter, each as an object of the same methods and plain answers.

The methods are named as those of the Python clients. A surface that has no word for one lacks the method, and the
tests say with ``on`` which surfaces they are for. The commands answer ``Counted`` where they only count.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from support.blocked import Blocked
from support.proxy import HttpProxy, Plan, Proxy, never
from support.surfaces.clients import OfClient
from support.surfaces.commands import OfCommands
from support.surfaces.http import OfHttp
from support.surfaces.refused import IMPOSSIBLE, Refused, of_clients, refused
from urifilter_redis import AsyncUriFilter, UriFilter
from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPIClient

if TYPE_CHECKING:
    from support.servers import Server
    from support.service import Service

__all__ = ["ALL", "IMPOSSIBLE", "JSON", "LIBRARY", "PYTHON", "SDK", "Refused", "Surface", "cases", "on", "refused"]

#: The clients of the library, those of the service, all that Python has, and all that speak JSON.
LIBRARY = ("blocking", "asyncio")
SDK = ("sdk", "asyncio-sdk")
PYTHON = LIBRARY + SDK
JSON = (*SDK, "http")
ALL = (*PYTHON, "http", "cli")

#: Read once, because that takes longer than most tests.
_CERTIFICATES = ssl.create_default_context()


def cases(*names: str) -> list[Any]:
    """Return the surfaces as parameters: a blocking client and its awaited twin share their code, so one is quick."""
    twins = {"asyncio": "blocking", "sdk": "asyncio-sdk"}
    return [pytest.param(each, marks=pytest.mark.slow) if twins.get(each) in names else each for each in names]


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test on these surfaces, because the others have no word for what it is about."""
    return pytest.mark.parametrize("surface", cases(*names), indirect=True)


class Surface(contextlib.ExitStack):
    """One of the ways, to the filters of a server; what it opens is closed at its end.

    Attributes:
        name: its name, one of ``ALL``.
        server: the server.
        made: the library's object about the filter that a test has made last, for what is done behind the surface.
        is_service: whether the HTTP service stands between.
    """

    def __init__(self, name: str, server: Server, service: Service) -> None:
        super().__init__()
        self.name, self.server, self._service = name, server, service
        self.made: UriFilter | None = None
        self.is_service = name in JSON
        self._loop: asyncio.AbstractEventLoop | None = None
        if name.startswith("asyncio"):
            self._loop = asyncio.new_event_loop()
            self.callback(self._end_loop, self._loop)

    def open(self, name: str = "news", through: Proxy | None = None, **options) -> Any:
        """Return an object about a filter; ``through`` a proxy; ``options`` are those of the Python clients."""
        made = self._opened(name, through, options)
        self.callback(made.close)
        return made

    def proxy(self, plan: Plan = never) -> Proxy:
        """Stand between an object and what it asks: the server, or the service."""
        kind, port = (HttpProxy, self._service.port) if self.is_service else (Proxy, self.server.port)
        return self.enter_context(kind(port, plan))

    def _opened(self, name: str, through: Proxy | None, options: dict[str, Any]) -> Any:
        asked = through or (self._service if self.is_service else self.server)
        if self.name in LIBRARY:
            with of_clients():
                return OfClient(self._of_library(name, asked.url, options))
        if self.name == "sdk":
            return OfClient(FilterAPIClient(asked.url, verify=_CERTIFICATES, **options), name)
        if self.name == "asyncio-sdk":
            return OfClient(self._blocked(AsyncFilterAPIClient(asked.url, verify=_CERTIFICATES, **options)), name)
        return OfHttp(asked.port, name) if self.name == "http" else OfCommands(asked.url, name)

    def _of_library(self, name: str, url: str, options: dict[str, Any]) -> Any:
        if self._loop is None:
            return UriFilter.open(name, redis=url, **options)

        async def opened() -> AsyncUriFilter:
            return await AsyncUriFilter.open(name, redis=url, **options)

        return self._blocked(self._loop.run_until_complete(opened()))

    def _blocked(self, made: Any) -> Blocked:
        return Blocked(made, self._loop)

    @staticmethod
    def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
        for task in asyncio.all_tasks(loop):  # those that beat for claims that nobody has closed
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
