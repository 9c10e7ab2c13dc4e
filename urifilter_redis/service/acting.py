"""The endpoint of actions on whole filters, and their audit log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from urifilter_redis.errors import AnswerLost, ArchiveMissing, TooLarge, UriFilterError
from urifilter_redis.service.actions import BODIES, DOES, ToUnite
from urifilter_redis.service.addresses import client_of
from urifilter_redis.service.bodies import Answer, read
from urifilter_redis.service.failures import Refusal, refusal_of
from urifilter_redis.service.gate import COMMAND, COUNTS, TOKEN, line_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from starlette.requests import Request
    from starlette.responses import Response

    from urifilter_redis.service.endpoints import Service

__all__ = ["Acting"]

audit = logging.getLogger("urifilter_redis.service.audit")


class Acting:
    """Does actions; each request gets its line in the audit log, whatever becomes of it.

    A client that waits too long for an answer repeats its request. Then it waits for the action that is under way.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._under_way: dict[tuple[str, str, str], asyncio.Task[dict[str, Any]]] = {}

    async def act(self, request: Request, filter_typeid: str, action: str) -> Response:
        """Do an action; answer its fields.

        Raises:
            Refusal: the token may not do this, the body is not such a wish, or the action failed.
        """
        request.scope[COMMAND], result = action, "internal_error"
        request.scope[COUNTS] = {"filter": filter_typeid}
        try:
            content = await self._done(request, filter_typeid, action)
            result = "ok"
        except Refusal as refusal:
            result = refusal.code
            raise
        finally:
            fields = {
                "token": request.scope.get(TOKEN, ""),
                "client": client_of(request.scope, self._service.settings.trusted_proxies),
                "filter": filter_typeid,
                "action": action,
                "result": result,
            }
            audit.info(line_of(fields), extra={"fields": fields})
        return Answer({"filter_typeid": filter_typeid, **content})

    async def _done(self, request: Request, name: str, action: str) -> dict[str, Any]:
        service = self._service
        token = service.whose(request)
        asked = await read(request, BODIES[action], service.settings.limits)
        for source in asked.sources if isinstance(asked, ToUnite) else ():
            if not token.may_use(source):
                raise Refusal("forbidden", f"this token is not for filter {source!r}")
        async with service.allowed(token, name, writes=True, acts=True):
            try:
                return await self._joined(name, action, asked)
            except UriFilterError as error:
                raise _refusal_of(error) from None
            except ValueError as error:
                raise Refusal("bad_request", str(error)) from None

    async def _joined(self, name: str, action: str, asked: BaseModel) -> dict[str, Any]:
        """Do an action, or wait for the same one that is under way."""
        key = name, action, asked.model_dump_json()
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(_does(self._service, name, action, asked))
            task.add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(task)


async def _does(service: Service, name: str, action: str, asked: BaseModel) -> dict[str, Any]:
    try:
        return await DOES[action](service.filters, name, asked)
    finally:
        service.filters.measure_anew(name)


def _refusal_of(error: UriFilterError) -> Refusal:
    """Return the refusal of an error; asking again mends neither a filter that is too large nor one without archive."""
    if isinstance(error, TooLarge):
        return Refusal("refused", str(error))
    refusal = refusal_of(error)
    if isinstance(error, ArchiveMissing):
        told = Refusal("refused", "the filter has no archive, or the service's archive does not have it")
    elif isinstance(error, AnswerLost):
        told = Refusal(refusal.code, "Redis is away, or refuses: repeat the request")
    else:
        return refusal
    told.detail = refusal.detail
    return told
