"""Actions on whole filters: the bodies that ask for them, and the flows that do them.

A client may repeat each of them after a lost reply: it names the state that it starts from (``expected_epoch``,
``uid``), or doing it once more changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from urifilter_redis.errors import ConfigMismatch, RotationConflict
from urifilter_redis.flows import dropping, lifecycle, rotation
from urifilter_redis.flows.checkpoint import checkpoint
from urifilter_redis.flows.union import union
from urifilter_redis.service.bodies import NAME_PATTERN, whole
from urifilter_redis.service.failures import Refusal
from urifilter_redis.service.settings import FilterSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from urifilter_redis.engine.session import Session
    from urifilter_redis.engine.steps import Flow
    from urifilter_redis.service.filters import Filters

    Does: TypeAlias = Callable[[Filters, str, Any], Awaitable[dict[str, Any]]]

__all__ = ["BODIES", "DOES", "ToCheckpoint", "ToDrop", "ToRestore", "ToRotate", "ToUnite"]

_STRICT = ConfigDict(extra="forbid", strict=True)

_EPOCH = "rotate only from this epoch on; `info` and a dry run tell it. Wanted unless it is a dry run"
_UID = "the uid of the filter, as `info` tells it: no other of the same name is dropped"


class ToRotate(BaseModel):
    """The wish to close a filter's newest slice and begin the next."""

    model_config = _STRICT

    expected_epoch: Annotated[int | None, Field(ge=0, description=_EPOCH), BeforeValidator(whole)] = None
    dry_run: Annotated[bool, Field(description="only tell the epoch that would be reached")] = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.expected_epoch is None and not self.dry_run:
            raise ValueError("expected_epoch: name the epoch to rotate from, so that a repeat does not rotate again")
        return self


class ToCheckpoint(BaseModel):
    """The wish to write a filter's changes to its archive."""

    model_config = _STRICT

    full: Annotated[bool, Field(description="write all shards, also unchanged ones")] = False


class ToRestore(BaseModel):
    """The wish to bring a filter back from its archive, if Redis lacks it or parts of it."""

    model_config = _STRICT


class ToUnite(BaseModel):
    """The wish to insert all items of other filters."""

    model_config = _STRICT

    sources: Annotated[
        list[Annotated[str, Field(pattern=NAME_PATTERN)]],
        Field(min_length=1, max_length=100, description="the names of the other filters"),
    ]
    over_capacity: Annotated[bool, Field(description="merge them even if the result is over capacity")] = False


class ToDrop(BaseModel):
    """The wish to remove a filter."""

    model_config = _STRICT

    confirm: Annotated[str, Field(description="the filter's name once more")]
    uid: Annotated[str, Field(pattern="^[0-9a-f]{16}$", description=_UID)]
    keep_archive: Annotated[bool, Field(description="keep the archive, from which it can be restored")] = False


async def _create(filters: Filters, name: str, asked: FilterSettings) -> dict[str, Any]:
    made = await filters.run_anew(name, lambda session: lifecycle.create(session, asked.settings(), large=asked.large))
    return {"uid": made.uid}


async def _rotate(filters: Filters, name: str, asked: ToRotate) -> dict[str, Any]:
    def flow(session: Session) -> Flow[dict[str, Any]]:
        try:
            done = yield from rotation.rotate(session, asked.expected_epoch, dry_run=asked.dry_run)
        except RotationConflict:
            done = rotation.Rotation((yield from rotation.epoch(session)))
            if asked.expected_epoch is None or done.epoch <= asked.expected_epoch:
                raise
        rotated = done.shards > 0
        return {"epoch": done.epoch, "rotated": rotated, "shards": done.shards, "problems": list(done.problems)}

    return await filters.run(name, flow)


async def _checkpoint(filters: Filters, name: str, asked: ToCheckpoint) -> dict[str, Any]:
    _check_archive(filters)
    done = await filters.run(name, lambda session: checkpoint(session, full=asked.full))
    return {"number": done.number, "begun": done.begun, "shards": done.shards, "size": done.size}


async def _restore(filters: Filters, name: str, _: ToRestore) -> dict[str, Any]:
    _check_archive(filters)
    return {"uid": (await filters.run_anew(name, lifecycle.open_)).uid}


async def _unite(filters: Filters, name: str, asked: ToUnite) -> dict[str, Any]:
    def flow(session: Session) -> Flow[int]:
        return union(session, asked.sources, over_capacity=asked.over_capacity)

    return {"added": await filters.run(name, flow)}


async def _drop(filters: Filters, name: str, asked: ToDrop) -> dict[str, Any]:
    if asked.confirm != name:
        raise Refusal("bad_request", "confirm: give the name of the filter once more")
    if name in filters.wanted:
        raise Refusal("refused", "the service's settings have this filter, and would make it anew: remove it there")
    try:
        dropped = await filters.run_anew(
            name, lambda session: dropping.drop(session, keep_archive=asked.keep_archive, uid=asked.uid)
        )
    except ConfigMismatch:  # it is gone, and another one has its name
        dropped = False
    return {"dropped": dropped}


def _check_archive(filters: Filters) -> None:
    if filters.archive_up is None:
        raise Refusal("refused", "the service has no archive: name one in its settings")


#: The body of each action.
BODIES: dict[str, type[BaseModel]] = {
    "create": FilterSettings,
    "rotate": ToRotate,
    "checkpoint": ToCheckpoint,
    "restore": ToRestore,
    "union": ToUnite,
    "drop": ToDrop,
}

#: The function that does each action, and returns the fields of its answer.
DOES: dict[str, Does] = {
    "create": _create,
    "rotate": _rotate,
    "checkpoint": _checkpoint,
    "restore": _restore,
    "union": _unite,
    "drop": _drop,
}
