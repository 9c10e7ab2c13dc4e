"""The short way to the endpoints about items: past FastAPI's routes, dependencies and middleware.

FastAPI has the same endpoints as routes, describes them, and answers everything that does not take this way.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from urifilter_redis.errors import UriFilterError
from urifilter_redis.http_api import FILTERS_PATH, OPERATIONS
from urifilter_redis.service.bodies import NAME, OfItems
from urifilter_redis.service.descriptions import DESCRIPTIONS
from urifilter_redis.service.endpoints import Service
from urifilter_redis.service.errors import Refusal
from urifilter_redis.service.middleware import ROUTE

if TYPE_CHECKING:
    Tells: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]

#: The commands about items, and the kinds of their bodies.
_KINDS = {
    name: each.asks for name, each in DESCRIPTIONS.items() if each.asks is not None and issubclass(each.asks, OfItems)
}
_COMMAND = re.compile(rf"{re.escape(FILTERS_PATH)}/({NAME})/({'|'.join(_KINDS)})")


class FastPath:
    """ASGI application that passes POSTs of items to their endpoints, and all other requests to another application."""

    def __init__(self, service: Service, others: ASGIApp, told: Tells) -> None:
        """Pass requests about items to the service, and all others to ``others``; ``told`` answers an exception."""
        self._service, self._others, self._told = service, others, told
        self._path = service.settings.path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._others(scope, receive, send)
            return
        request = Request(scope, receive)
        if scope["path"] == self._path:
            scope[ROUTE] = self._path
            answering = self._service.unique(request)
        elif found := _COMMAND.fullmatch(scope["path"]):
            scope[ROUTE] = OPERATIONS[found[2]].path
            answering = self._service.command(request, found[1], found[2], _KINDS[found[2]])
        else:
            await self._others(scope, receive, send)
            return
        try:
            answer = await answering
        except (Refusal, UriFilterError) as error:
            answer = await self._told(request, error)
        except Exception as error:
            await (await self._told(request, error))(scope, receive, send)
            raise  # for the log
        await answer(scope, receive, send)
