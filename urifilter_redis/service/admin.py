"""Actions on whole filters: their bodies, flows, endpoint and audit log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from urifilter_redis import errors
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.flows import dropping, lifecycle, rotation
from urifilter_redis.flows.checkpoint import checkpoint
from urifilter_redis.flows.loss import acknowledge
from urifilter_redis.flows.union import union
from urifilter_redis.service.bodies import (
    AcknowledgeRequest,
    CheckpointRequest,
    DropRequest,
    RestoreRequest,
    RotateRequest,
    UnionRequest,
)
from urifilter_redis.service.endpoints import Service
from urifilter_redis.service.errors import Refusal, refusal_of
from urifilter_redis.service.filters import Filters
from urifilter_redis.service.logs import shape_of
from urifilter_redis.service.middleware import COUNTS, TOKEN, line_of
from urifilter_redis.service.requests import client_of, query, read
from urifilter_redis.service.responses import Answer
from urifilter_redis.service.settings import FilterSettings

if TYPE_CHECKING:
    Does: TypeAlias = Callable[[Filters, str, Any], Awaitable[dict[str, Any]]]

#: Seconds to wait for the names of the filters, so that the log has that of a refused action.
PATIENCE = 0.4

audit = logging.getLogger("urifilter_redis.service.audit")


async def _create(filters: Filters, name: str, asked: FilterSettings) -> dict[str, Any]:
    made = await filters.run_anew(name, lambda session: lifecycle.create(session, asked.settings(), large=asked.large))
    return {"uid": made.uid}


async def _rotate(filters: Filters, name: str, asked: RotateRequest) -> dict[str, Any]:
    def flow(session: Session) -> Flow[dict[str, Any]]:
        try:
            done = yield from rotation.rotate(session, asked.expected_epoch, dry_run=asked.dry_run)
        except errors.RotationConflict:
            done = rotation.Rotation((yield from rotation.epoch(session)))
            if asked.expected_epoch is None or done.epoch <= asked.expected_epoch:
                raise
        rotated = done.shards > 0
        return {"epoch": done.epoch, "rotated": rotated, "shards": done.shards, "problems": list(done.problems)}

    return await filters.run(name, flow)


async def _checkpoint(filters: Filters, name: str, asked: CheckpointRequest) -> dict[str, Any]:
    _check_archive(filters)
    done = await filters.run(name, lambda session: checkpoint(session, full=asked.full))
    return asdict(done)


async def _restore(filters: Filters, name: str, _: RestoreRequest) -> dict[str, Any]:
    _check_archive(filters)
    return {"uid": (await filters.run_anew(name, lifecycle.restore_by_hand)).uid}


async def _acknowledge(filters: Filters, name: str, _: AcknowledgeRequest) -> dict[str, Any]:
    return {"shards": await filters.run(name, acknowledge)}


async def _unite(filters: Filters, name: str, asked: UnionRequest) -> dict[str, Any]:
    added = await filters.run(name, lambda session: union(session, asked.sources, over_capacity=asked.over_capacity))
    return {"added": added}


async def _drop(filters: Filters, name: str, asked: DropRequest) -> dict[str, Any]:
    if asked.confirm != name:
        raise Refusal("bad_request", "confirm: give the name of the filter once more")
    if name in filters.wanted:
        raise Refusal("refused", "the service's settings have this filter, and would make it anew: remove it there")
    try:
        dropped = await filters.run_anew(
            name, lambda session: dropping.drop(session, keep_archive=asked.keep_archive, uid=asked.uid)
        )
    except errors.ConfigMismatch:  # it is gone, and another one has its name
        dropped = False
    return {"dropped": dropped}


def _check_archive(filters: Filters) -> None:
    if filters.archive_up is None:
        raise Refusal("refused", "the service has no archive: name one in its settings")


#: The function that does each action and returns the fields of its answer.
_DOES: Mapping[str, Does] = {
    "create": _create,
    "rotate": _rotate,
    "checkpoint": _checkpoint,
    "restore": _restore,
    "acknowledge": _acknowledge,
    "union": _unite,
    "drop": _drop,
}


class Admin:
    """Does actions; each request gets its line in the audit log, whatever becomes of it.

    A client that waits too long for an answer repeats its request. Then it waits for the action that is under way.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._under_way: dict[tuple[str, str, str], asyncio.Task[dict[str, Any]]] = {}

    async def act(self, request: Request, name: str, action: str, kind: type[BaseModel]) -> Response:
        """Do an action, with a body or query of some kind; answer its fields.

        Raises:
            Refusal: the token may not do this, the body has other fields, or the action failed.
        """
        result = "internal_error"
        try:
            content = await self._done(request, name, action, kind)
            request.scope[COUNTS], result = {"filter": name}, "ok"
        except Refusal as refusal:
            result = refusal.code
            raise
        finally:
            fields = {
                "token": request.scope.get(TOKEN, ""),
                "client": client_of(request.scope, self._service.settings.trusted_proxies),
                "filter": name if result == "ok" else await self._shown(request, name),
                "action": action,
                "result": result,
            }
            audit.info(line_of(fields), extra={"fields": fields})
        return Answer({"filter": name, **content})

    async def _shown(self, request: Request, name: str) -> str:
        """Return the name of a refused action for the log, or its shape if there is no such filter.

        Redis is asked for the names of its filters only if the request had a token.
        """
        filters = self._service.filters
        if TOKEN in request.scope and not filters.knows(name):
            with contextlib.suppress(errors.UriFilterError, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await filters.names()
        return name if filters.knows(name) else shape_of(name)

    async def _done(self, request: Request, name: str, action: str, kind: type[BaseModel]) -> dict[str, Any]:
        service = self._service
        token = service.whose(request)
        by_query = request.method == "DELETE"
        asked = query(request, kind) if by_query else await read(request, kind, service.settings.limits)
        for source in asked.sources if isinstance(asked, UnionRequest) else ():
            if not token.may_use(source):
                raise Refusal("forbidden", f"this token is not for filter {source!r}")
        async with service.allowed(token, name, writes=True, acts=True):
            try:
                return await self._joined(name, action, asked)
            except errors.UriFilterError as error:
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
        return await _DOES[action](service.filters, name, asked)
    finally:
        service.filters.measure_anew(name)


def _refusal_of(error: errors.UriFilterError) -> Refusal:
    """Return the refusal of an error; asking again mends neither a filter that is too large nor one without archive."""
    if isinstance(error, errors.TooLarge):
        return Refusal("refused", str(error))
    refusal = refusal_of(error)
    if isinstance(error, errors.ArchiveMissing):
        told = Refusal("refused", "the filter has no archive, or the service's archive does not have it")
    elif isinstance(error, errors.AnswerLost):
        told = Refusal(refusal.code, "Redis is away, or refuses: repeat the request")
    else:
        return refusal
    told.detail = refusal.detail
    return told
