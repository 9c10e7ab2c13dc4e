"""The six ways to ask about a filter, each as an object of the same methods and plain answers.

The methods are named as those of the Python clients. A surface that has no word for one lacks the method, and the
tests say with ``on`` which surfaces they are for. The commands answer ``Counted`` where they only count.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from support.blocked import LIBRARY, SDK, Clients
from support.proxy import HttpProxy, Plan, Proxy, never
from support.surfaces.clients import OfClient
from support.surfaces.commands import OfCommands
from support.surfaces.http import OfHttp
from support.surfaces.refused import IMPOSSIBLE, Refused, of_clients, refused

if TYPE_CHECKING:
    from support.servers import Server
    from support.service import Service
    from urifilter_redis import UriFilter

__all__ = ["ALL", "IMPOSSIBLE", "JSON", "LIBRARY", "PYTHON", "SDK", "Refused", "Surface", "cases", "on", "refused"]

#: All that Python has, and all that speak JSON.
PYTHON = LIBRARY + SDK
JSON = (*SDK, "http")
ALL = (*PYTHON, "http", "cli")


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
        self._clients = self.enter_context(Clients(name))

    def open(self, name: str = "news", through: Proxy | None = None, **options) -> Any:
        """Return an object about a filter; ``through`` a proxy; ``options`` are those of the Python clients."""
        asked = through or (self._service if self.is_service else self.server)
        if self.name in PYTHON:
            with of_clients():
                made = OfClient(self._clients.open(name, redis=asked.url, **options))
        else:
            made = OfHttp(asked.port, name) if self.name == "http" else OfCommands(asked.url, name)
        self.callback(made.close)
        return made

    def proxy(self, plan: Plan = never) -> Proxy:
        """Stand between an object and what it asks: the server, or the service."""
        kind, port = (HttpProxy, self._service.port) if self.is_service else (Proxy, self.server.port)
        return self.enter_context(kind(port, plan))
