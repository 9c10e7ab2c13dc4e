"""The short way to the endpoints that are asked all the time: past FastAPI's routes, dependencies and middleware.

FastAPI has the same endpoints as routes, describes them, and answers everything that is not asked for in just this way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request

from urifilter_redis.errors import UriFilterError
from urifilter_redis.http_api import COMMANDS, FILTERS_PATH
from urifilter_redis.service.bodies import NAME
from urifilter_redis.service.failures import Refusal
from urifilter_redis.service.gate import ROUTE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from urifilter_redis.service.endpoints import Service

    Tells: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]

__all__ = ["Direct"]

_COMMAND = re.compile(rf"{re.escape(FILTERS_PATH)}/({NAME})/({'|'.join(COMMANDS)})")


class Direct:
    """ASGI application that leads POSTs of items to their endpoints, and everything else to another application."""

    def __init__(self, service: Service, others: ASGIApp, told: Tells) -> None:
        """Lead requests.

        Args:
            service: has the endpoints.
            others: answers everything else.
            told: makes the answer of an exception.
        """
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
            scope[ROUTE] = f"{FILTERS_PATH}/{{filter_typeid}}/{found[2]}"
            answering = self._service.command(request, found[1], found[2])
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
